"""Reads what a process has counted of its launches (ipc/count_layout.py), and makes rows of what is new.

Totals only grow, so rows are differences to what is noted as published. A decoder that is killed between the writing of
rows and the note leaves one interval to be published twice; none is lost.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.ipc import count_layout as layout
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.producers.ipc.count_layout import CountField
from drumline.producers.live_matching.pending import StringTable
from drumline.schemas.bounds.check import CUT_MARK
from drumline.schemas.columns import Array

#: Length of an interval: that of the distance of two rolling windows; ns.
INTERVAL_NS = 5_000_000_000
#: Names of rows that no kernel stands for.
LABELS = {layout.OTHER_KERNELS: "(other kernels)", layout.UNKNOWN_GRAPHS: "(graph of unknown kernels)"}
UNNAMED = "(kernel without a name)"
#: Attempts at a reading during which no graph changes, and the wait between two; s.
_ATTEMPTS, _WAIT_S = 20, 0.001
_ENTRY = np.dtype([
    ("function", "<u8"), ("grid", "<u4", 3), ("shared", "<u4"), ("block", "<u2", 3), ("unused", "<u2"), ("name", "<u4"),
    ("generation", "<u4"), ("kind", "<u2"), ("state", "<u2"), ("unused2", "<u4"), ("launches", "<u8"),
    ("replayed", "<u8"),
])  # fmt: skip
_GRAPH = np.dtype([
    ("exec", "<u8"), ("replays", "<u8"), ("first", "<u4"), ("count", "<u4"), ("room", "<u4"), ("other", "<u4"),
])  # fmt: skip
_NODE = np.dtype([("entry", "<u4"), ("count", "<u4"), ("bytes", "<u8")])


class _Totals(NamedTuple):
    """Counts of all entries since the process began: launches with those by replays, the latter, bytes."""

    launches: Array
    replayed: Array
    bytes: Array


class LaunchCounts:
    """Makes rows of gpu.launch-count.v1 of one process. Owned by SpoolOutput, in the decoder's only thread.

    Reading may wait for some milliseconds while the process changes a graph.
    """

    def __init__(self, pool: BufferPool) -> None:
        memory = np.frombuffer(pool.memory, np.uint8)[pool.counts_at :][: layout.TABLE_BYTES]
        self._header = memory[: layout.ENTRIES_AT].view("<u8")
        self._entries = memory[layout.ENTRIES_AT : layout.GRAPHS_AT].view(_ENTRY)
        self._graphs = memory[layout.GRAPHS_AT : layout.NODES_AT].view(_GRAPH)
        self._nodes = memory[layout.NODES_AT : layout.NAMES_AT].view(_NODE)
        self._names = memory[layout.NAMES_AT : layout.PUBLISHED_AT]
        self._published = memory[layout.PUBLISHED_AT :].view("<u8").reshape(3, -1)
        self._texts: dict[int, str] = {}

    @property
    def is_used(self) -> bool:
        """Return whether the process has ever counted."""
        return bool(self._header[CountField.NAMES_USED])

    @property
    def counts(self) -> dict[str, float]:
        """Return what could not be counted as it should, for the status of the process."""
        counts: dict[str, float] = {}
        counts["unnamed_kernels"] = int(self._header[CountField.NAMES_DENIED])
        counts["unknown_graphs"] = int(self._header[CountField.GRAPHS_DENIED])
        counts["conditional_nodes"] = int(self._header[CountField.BODIES])
        return {name: count for name, count in counts.items() if count}

    def is_due(self, now_ns: int) -> bool:
        """Return whether an interval has ended; all processes end theirs together. The first call begins one."""
        if self.is_used and not self._header[CountField.PUBLISHED_NS]:
            self._header[CountField.PUBLISHED_NS] = now_ns
        return self.is_used and now_ns // INTERVAL_NS > int(self._header[CountField.PUBLISHED_NS]) // INTERVAL_NS

    def take(self, now_ns: int) -> tuple[Table | None, _Totals]:
        """Return the rows of what was counted since the last `note`, None without any; and the totals to note."""
        entries, totals = self._read()
        began_ns = int(self._header[CountField.PUBLISHED_NS])
        published = _Totals(*self._published)
        is_new = totals.launches > published.launches
        if now_ns <= began_ns or not is_new.any():
            return None, totals
        at = np.flatnonzero(is_new)
        # Of one kernel and shape there may be several entries: threads that met, modules that came again.
        keys = np.zeros(len(at), np.dtype([("kind", "<u4"), ("name", "<u4"), ("shape", "<u4", 7)]))
        rows = entries[at]
        is_kernel = rows["kind"] == layout.KERNEL
        keys["kind"], keys["name"] = rows["kind"], np.where(at < 3, at, rows["name"] + 3)
        keys["shape"][is_kernel] = np.column_stack([rows["grid"], rows["block"], rows["shared"]])[is_kernel]
        _, first, inverse = np.unique(keys.view(f"V{keys.dtype.itemsize}"), return_index=True, return_inverse=True)
        count, names = len(first), StringTable()
        keys = keys[first]
        texts = [self._text(int(key["name"]), int(key["kind"])) for key in keys]
        columns: dict[str, Array] = {
            "start_ns": np.full(count, began_ns, np.int64),
            "duration_ns": np.full(count, now_ns - began_ns, np.uint64),
            "kind": keys["kind"].astype(np.uint8),
            "name": names.take(np.arange(count, dtype=np.uint32), texts),
            "shared_dynamic": keys["shape"][:, 6].astype(np.int32),
        }
        for number, axis in enumerate("xyz"):
            columns[f"grid_{axis}"] = keys["shape"][:, number].astype(np.int32)
            columns[f"block_{axis}"] = keys["shape"][:, 3 + number].astype(np.int32)
        for name in _Totals._fields:
            new = (getattr(totals, name) - getattr(published, name))[at].astype(np.int64)
            columns[name] = np.bincount(inverse.ravel(), np.maximum(new, 0), count).astype(np.uint64)
        return Table(columns, {"names": names.strings}), totals

    def note(self, totals: _Totals, now_ns: int) -> None:
        """Note what was taken as published; the next interval begins."""
        self._published[:] = totals
        self._header[CountField.PUBLISHED_NS] = now_ns

    def _read(self) -> tuple[Array, _Totals]:
        for attempt in range(_ATTEMPTS):
            settling = int(self._header[CountField.SETTLING])
            entries, graphs, nodes = self._entries.copy(), self._graphs.copy(), self._nodes
            graphs = graphs[(graphs["exec"] != 0) & (graphs["replays"] > 0)]
            first, count = graphs["first"].astype(np.int64), np.minimum(graphs["count"], layout.NODES).astype(np.int64)
            parts = np.repeat(np.arange(len(graphs)), count)
            within = np.arange(len(parts)) - np.repeat(np.cumsum(count) - count, count)
            used = nodes[np.minimum(first[parts] + within, layout.NODES - 1)]
            if settling % 2 == 0 and settling == int(self._header[CountField.SETTLING]):
                break
            if attempt + 1 < _ATTEMPTS:  # else the process was killed meanwhile
                time.sleep(_WAIT_S)
        replays, at = graphs["replays"][parts], np.minimum(used["entry"], layout.ENTRIES - 1)
        replayed, size = entries["replayed"].copy(), _bytes(entries)
        np.add.at(replayed, at, replays * used["count"])
        np.add.at(size, at, replays * used["bytes"])
        replayed[layout.OTHER_KERNELS] += (graphs["replays"] * graphs["other"]).sum(dtype=np.uint64)
        return entries, _Totals(entries["launches"] + replayed, replayed, size)

    def _text(self, name: int, kind: int) -> str:
        """Return the name of a row; `name`: the number of one of the first entries, or an offset and 3."""
        if kind != layout.KERNEL:
            return LABELS.get(name, "") if name < 3 else ""
        if name <= 3:
            return LABELS.get(name, UNNAMED)
        if name not in self._texts:
            raw = self._names[name - 3 :][: layout.LONGEST_NAME + 1].tobytes().split(b"\0", 1)[0]
            text = raw.decode(errors="replace")
            self._texts[name] = text + CUT_MARK if len(raw) >= layout.LONGEST_NAME else text
        return self._texts[name]


def _bytes(entries: Array) -> Array:
    """Return the bytes of entries of copies, 0 of others: they lie where a kernel has its grid."""
    fields = entries.view("<u8").reshape(len(entries), -1)
    return np.where(entries["kind"] < layout.KERNEL, fields[:, 1] + fields[:, 2], 0).astype(np.uint64)
