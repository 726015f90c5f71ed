"""Decodes whole CUPTI activity buffers to columns: find every record, then gather each field at once.

Kinds are finely mixed (about six records of one kind in a row), so finding records is a plain loop: handling a run of
equal records with numpy costs as much as twenty iterations. Everything after that is numpy.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.activity import MEMSET
from drumline.producers.activity.table import Table
from drumline.producers.decoder import cupti_layout as cupti
from drumline.producers.decoder.remote_memory import RemoteMemory
from drumline.producers.decoder.string_cache import StringCache
from drumline.producers.derive.nccl.kernel_names import payload_fields
from drumline.schemas.columns import Array

#: CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC, CUPTI_ACTIVITY_FLAG_MEMSET_ASYNC.
_ASYNC = 1


#: September 2001: GPU times are later, cycle counters stay below it; ns.
EPOCH_NS = 1_000_000_000_000_000_000
#: Bit of a record's kind: CUPTI gave the buffer back before it finished the record, and never completes it (13.5.25
#: beside PyTorch's profiler, the last record of a buffer; CUPTI's own reader stops there). It has the finished size.
UNFINISHED = 1 << 31


class UnknownSize(Exception):
    """A record of a kind whose size is not known: records behind it cannot be found. Retry when the size is known."""

    def __init__(self, kind: int, at: int) -> None:
        self.kind, self.at = kind, at
        super().__init__(f"CUPTI record of kind {kind} at byte {at}: size not known")


@dataclass(frozen=True)
class Records:
    """Holds a buffer and the byte positions of its records by kind (multiples of 8).

    `unfinished`: number of further records that CUPTI did not finish.
    """

    data: Array
    positions: Mapping[int, Array]
    unfinished: int

    def field(self, kind: int, name: str) -> Array:
        """Return one field of all records of a kind, in buffer order."""
        dtype, offset = cupti.LAYOUTS[kind].fields[name]
        size = np.dtype(dtype).itemsize
        values: Array = self.data.view(dtype)[(self.positions[kind] + offset) // size]
        return values

    def count(self, kind: int) -> int:
        """Return the number of records of a kind."""
        return len(self.positions.get(kind, ()))


def find_records(buffer: Array, sizes: Sequence[int]) -> Records:
    """Find the records of a completed buffer. Raises UnknownSize, also for an impossible kind.

    `buffer`: its valid bytes, u1. `sizes`: record size by kind, 0 = not known.
    """
    usable = len(buffer) // 8 * 8
    data = np.ascontiguousarray(buffer[:usable])
    kind_at = data.data.cast("B").cast("I")  # indexing it costs half of indexing numpy
    starts = array("q")
    at = 0
    while at < usable:
        kind = kind_at[at >> 2]
        size = sizes[kind] if kind < len(sizes) else _unfinished_size(kind, sizes)
        if not size:
            raise UnknownSize(kind % UNFINISHED, at)
        starts.append(at)
        at += size
    positions = np.frombuffer(starts, np.int64) if starts else np.empty(0, np.int64)
    kinds = data.view("<u4")[positions // 4]
    places = {int(kind): positions[kinds == kind] for kind in np.unique(kinds)}
    unfinished = sum(len(places.pop(kind)) for kind in list(places) if kind >= UNFINISHED)
    return Records(data, places, unfinished)


def _unfinished_size(kind: int, sizes: Sequence[int]) -> int:
    kind -= UNFINISHED
    return sizes[kind] if 0 <= kind < len(sizes) else 0


@dataclass(frozen=True)
class Decoded:
    """Holds the decoded rows of one buffer; columns as in Activity.

    `kernels`, `copies`: with a `device` column (CUDA ordinal) too.
    `marker_threads`: CUPTI's names of the threads of the markers, u4.
    `launched`: calls that may have launched: `correlation` u4, host time `start_ns` i8, `duration_ns` u8, `thread` u4.
    `invalid`: "kernels", "copies" or "launches" -> records with impossible times, or unfinished.
    `unknown`: kind -> records that are not decoded: of a size that cupti_layout does not list.
    """

    kernels: Table
    copies: Table
    markers: Table
    payloads: Table
    launched: Table
    invalid: Counter[str]
    unknown: Mapping[int, int]
    marker_threads: Array

    @property
    def records(self) -> int:
        """Number of decoded rows, calls excepted."""
        return self.kernels.rows + self.copies.rows + self.markers.rows + self.payloads.rows

    @property
    def only_peers(self) -> bool:
        """True if it holds only copies between GPUs, which arrive while recording is off too."""
        return self.unknown.keys() == {cupti.PEER_COPY} and not self.records


class Decoder:
    """Decodes the buffers of one process, and caches its strings. Owned by BufferReader; single-threaded."""

    def __init__(self, memory: RemoteMemory) -> None:
        self._memory = memory
        self.names, self.labels, self.domains = StringCache(memory), StringCache(memory), StringCache(memory)

    def decode(self, records: Records, sizes: Sequence[int], is_recording: bool = True) -> Decoded:
        """Decode the records of a buffer; `sizes` as for find_records. Raises NotAllowed.

        A kind of a size that cupti_layout does not list gives no rows, but is counted; so are copies between GPUs while
        recording is off.
        """
        kept = {kind for kind in records.positions if is_recording or kind != cupti.PEER_COPY}
        unknown = {
            kind: len(at) for kind, at in records.positions.items() if kind not in kept or not known(kind, sizes[kind])
        }
        positions = {kind: at for kind, at in records.positions.items() if kind not in unknown}
        positions = {**dict.fromkeys(cupti.LAYOUTS, np.empty(0, np.int64)), **positions}
        readable = Records(records.data, positions, records.unfinished)
        kernels, bad_kernels = _valid(self._kernels(readable))
        copies, bad_copies = _valid(_copies(readable))
        launched, bad_launches = _valid(_launched(readable))
        # An unfinished record counts as a dropped kernel, whatever its kind is.
        invalid = Counter({"kernels": bad_kernels + records.unfinished, "copies": bad_copies, "launches": bad_launches})
        markers, payloads = self._markers(readable), self._payloads(readable)
        threads = readable.field(cupti.MARKER, "thread_")
        return Decoded(kernels, copies, markers, payloads, launched, invalid, unknown, threads)

    def _kernels(self, records: Records) -> Table:
        def get(name: str) -> Array:
            return records.field(cupti.KERNEL, name)

        start = get("start").view(np.int64)
        columns = {
            "name": self.names.indices(get("name")),
            "start_ns": start,
            "duration_ns": get("end") - start.view(np.uint64),
            "stream": get("stream_id"),
            "correlation": get("correlation_id"),
            **{name: get(name) for axis in "xyz" for name in (f"grid_{axis}", f"block_{axis}")},
            "cluster_x": get("cluster_x"),
            "registers": get("registers_per_thread"),
            "shared_static": get("static_shared_memory"),
            "shared_dynamic": get("dynamic_shared_memory"),
            "shared_executed": get("shared_memory_executed"),
            "local_per_thread": get("local_memory_per_thread"),
            "graph": get("graph_id"),
            "graph_node": get("graph_node_id"),
            "device": get("device_id"),
        }
        return Table(columns, {"names": self.names.strings})

    def _markers(self, records: Records) -> Table:
        def get(name: str) -> Array:
            return records.field(cupti.MARKER, name)

        self.labels.trim()  # PendingActivity copies the strings of the markers it keeps (live_matching/pending.py)
        columns = {
            "id": get("id"),
            "time_ns": get("timestamp").view(np.int64),
            "flags": get("flags_"),
            "name": self.labels.indices(get("name")),
            "domain": self.domains.indices(get("domain")),
        }
        return Table(columns, {"names": self.labels.strings, "domains": self.domains.strings})

    def _payloads(self, records: Records) -> Table:
        """Return communicator, bytes and peer of NVTX extended payloads of NCCL (nccl.payload_fields)."""
        extended = records.field(cupti.MARKER_DATA, "payload_kind") == cupti.EXTENDED_PAYLOAD
        ids = records.field(cupti.MARKER_DATA, "id")[extended]
        pointers = records.field(cupti.MARKER_DATA, "payload")[extended]
        heads, _, readable = self._memory.read(pointers, np.full(len(pointers), 24))
        fields = heads.view("<u8").reshape(-1, 3)  # schema, size, pointer
        good = readable & (fields[:, 1] >= 16) & (fields[:, 1] <= 4096)
        data, offsets, readable = self._memory.read(fields[good, 2], np.minimum(fields[good, 1], 24).astype(np.int64))
        communicator, size, peer, _ = payload_fields(data.tobytes(), offsets)
        table = Table({"id": ids[good], "communicator": communicator, "bytes": size, "peer": peer})
        return table.take(readable)


def _launched(records: Records) -> Table:
    """Return the calls of the driver, then those of the runtime."""

    def of_both(name: str) -> Array:
        return np.concatenate([records.field(kind, name) for kind in (cupti.DRIVER, cupti.RUNTIME)])

    start = of_both("start").view(np.int64)
    columns = {
        "correlation": of_both("correlation_id"),
        "start_ns": start,
        "duration_ns": of_both("end") - start.view(np.uint64),
        "thread": of_both("thread_id"),
    }
    return Table(columns)


def known(kind: int, size: int) -> bool:
    """Return whether records of this kind and size can be decoded."""
    return kind in cupti.LAYOUTS and size in cupti.LAYOUTS[kind].sizes


def _copies(records: Records) -> Table:
    """Return copies, those between GPUs, then memsets under kind MEMSET (activity.py)."""

    def joined(copy: str, memset: Array) -> Array:
        return np.concatenate([records.field(cupti.MEMCPY, copy), records.field(cupti.PEER_COPY, copy), memset])

    def of_all(name: str) -> Array:
        return joined(name, records.field(cupti.MEMSET, name))

    none = np.zeros(records.count(cupti.MEMSET), np.uint8)
    start = of_all("start").view(np.int64)
    columns = {
        "kind": joined("copy_kind", none + np.uint8(MEMSET)),
        "src_kind": joined("src_kind", none),
        "dst_kind": joined("dst_kind", records.field(cupti.MEMSET, "memory_kind").astype(np.uint8)),
        "bytes": of_all("bytes"),
        "start_ns": start,
        "duration_ns": of_all("end") - start.view(np.uint64),
        "stream": of_all("stream_id"),
        "correlation": of_all("correlation_id"),
        "is_async": (of_all("flags_") & _ASYNC).astype(np.uint8),
        "graph": of_all("graph_id"),
        "device": of_all("device_id"),
    }
    return Table(columns)


def _valid(table: Table) -> tuple[Table, int]:
    """Drop records with times that are unset or from another clock, and return how many were dropped."""
    good = (table["start_ns"] > EPOCH_NS) & (table["duration_ns"] < np.uint64(1 << 62))
    return (table, 0) if good.all() else (table.take(good), int((~good).sum()))
