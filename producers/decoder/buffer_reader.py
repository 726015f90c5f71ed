"""Reads completed buffers and marks of one recorded process into tables, and counts the rows lost in reading."""

from __future__ import annotations

from collections import Counter

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.decoder import cupti_layout
from drumline.producers.decoder.cupti_decode import Decoded, Decoder, UnknownSize, find_records
from drumline.producers.decoder.remote_memory import RemoteMemory
from drumline.producers.derive.steps.steps import API_DOMAIN
from drumline.producers.ipc.buffer_pool import BufferPool, Header
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: Longest wait for the size of a record kind, which a process that died cannot answer; ns.
SIZE_WAIT_NS = 3_000_000_000


class BufferReader:
    """Decodes the buffers of one process. Owned by Session, in the decoder's only thread.

    `records`: number decoded, by table. `bytes`: of the buffers read. `dropped`: rows lost, by topic; SpoolOutput
    reports and empties it. `memory`: of the process. `problems`: the session's, short name -> sentence.
    """

    def __init__(self, pool: BufferPool, pid: int, problems: dict[str, str]) -> None:
        self.records, self.bytes = Counter[str](), 0
        self.dropped: Counter[Topic] = Counter()
        self._pool, self._problems = pool, problems
        self.memory = RemoteMemory(pid)
        self._decoder = Decoder(self.memory)
        self._stuck_since = 0

    @property
    def unreadable_strings(self) -> int:
        """Number of pointers to strings that could not be read."""
        return self._decoder.names.unreadable + self._decoder.labels.unreadable

    @property
    def truncated_strings(self) -> int:
        """Number of strings that were cut."""
        return self._decoder.names.truncated + self._decoder.labels.truncated

    def read(self, number: int, now_ns: int, is_recording: bool = True) -> Decoded | None:
        """Decode a buffer; None if it is unreadable. Raises UnknownSize: retry when the pool has the size of that kind.

        Copies between GPUs have rows only while `is_recording`. After SIZE_WAIT_NS the records from a kind without a
        size on count as dropped.
        """
        header, sizes = self._pool.header, self._pool.sizes.tolist()
        # launches.c writes them too, and CUPTI may have none.
        sizes[cupti_layout.DRIVER] = sizes[cupti_layout.DRIVER] or cupti_layout.LAYOUTS[cupti_layout.DRIVER].sizes[0]
        view = self._pool.valid(number)
        data, behind = np.frombuffer(view, np.uint8), 0
        try:
            records = find_records(data, sizes)
        except UnknownSize as unknown:
            if unknown.kind < len(sizes):  # else no collector can find it
                header[Header.WANTED_KIND] = unknown.kind
                self._stuck_since = self._stuck_since or now_ns
                if now_ns - self._stuck_since < SIZE_WAIT_NS:
                    raise
            self._problems["size"] = f"{unknown}; the records behind it are lost"
            behind = max(1, (len(data) - unknown.at) // 216)
            records = find_records(data[: unknown.at], sizes)
        decoded: Decoded | None = None
        try:
            decoded = self._decoder.decode(records, sizes, is_recording)
            decoded.invalid["kernels"] += behind
        except Exception as error:
            self._problems["decode"] = f"{type(error).__name__}: {error}"
            copies = sum(
                records.count(kind) for kind in (cupti_layout.MEMCPY, cupti_layout.PEER_COPY, cupti_layout.MEMSET)
            )
            self.dropped[Topic.KERNEL] += records.count(cupti_layout.KERNEL) + records.unfinished + behind
            self.dropped[Topic.MEMCPY] += copies
        self._stuck_since = 0
        self.bytes += len(view)
        if decoded is not None:
            self._count(decoded, sizes)
        return decoded

    def mark(self, flags: int, number: int, time_ns: int, name: str) -> Table:
        """Return a mark (ipc/events.py) as a marker table; columns as in Activity."""
        labels, domains = self._decoder.labels, self._decoder.domains
        labels.trim()
        columns: dict[str, Array] = {
            "id": np.array([number], np.uint32),
            "time_ns": np.array([time_ns], np.int64),
            "flags": np.array([flags], np.int32),
            "name": np.array([labels.index(name)], np.uint32),
            "domain": np.array([domains.index(API_DOMAIN)], np.uint32),
        }
        return Table(columns, {"names": labels.strings, "domains": domains.strings})

    def _count(self, decoded: Decoded, sizes: list[int]) -> None:
        for kind, count in decoded.unknown.items():
            if kind == cupti_layout.PEER_COPY:
                self.records["peer_copies"] += count
                continue
            name = cupti_layout.LAYOUTS[kind].struct if kind in cupti_layout.LAYOUTS else str(kind)
            self._problems["layout"] = f"records of {sizes[kind]} bytes for {name}: this CUPTI is newer than drumline"
            if kind not in (cupti_layout.DRIVER, cupti_layout.RUNTIME):  # a call by itself gives no row
                self.dropped[Topic.KERNEL if kind == cupti_layout.KERNEL else Topic.MEMCPY] += count
        self.dropped[Topic.KERNEL] += decoded.invalid["kernels"]
        self.dropped[Topic.MEMCPY] += decoded.invalid["copies"]
        for name in ("kernels", "copies", "markers", "payloads"):
            self.records[name] += getattr(decoded, name).rows
        if decoded.launched.rows:
            self.records["launches"] += decoded.launched.rows
        if decoded.invalid["launches"]:
            self.records["invalid_launches"] += decoded.invalid["launches"]
