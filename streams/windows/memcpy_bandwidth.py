"""Memcpy bandwidth: copies, bytes and copy time per direction and memory kinds in a rolling window."""

from __future__ import annotations

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.windows.panes import Array, Pane, pane_of_rows
from drumline.streams.windows.process_state import Names

_NO_CELLS = np.zeros(0, np.uint32)


class MemcpyBandwidth:
    """Groups gpu.memcpy.v1 by copy kind, source and target memory kind. A `Reducer`."""

    source = str(Topic.MEMCPY)
    target = str(Topic.MEMCPY_BANDWIDTH)

    def pane(self, batch: Batch, rows: Array | slice, names: Names) -> Pane:
        """Return the chosen rows as a pane (see `Reducer`)."""
        columns = batch.columns
        kind, source, target = (columns[name][rows].astype(np.uint32) for name in ("kind", "src_kind", "dst_kind"))
        ids = kind << np.uint32(16) | source << np.uint32(8) | target
        size, duration = columns["bytes"][rows], columns["duration_ns"][rows]
        return pane_of_rows(ids, (np.ones(len(ids), np.uint64), size, duration), (), (duration,), _NO_CELLS)

    def result(self, pane: Pane, names: Names) -> tuple[dict[str, object], dict[str, Array], int]:
        """Return a window as columns (see `Reducer`)."""
        columns = {
            "kind": (pane.ids >> np.uint32(16)).astype(np.uint8),
            "src_kind": (pane.ids >> np.uint32(8) & np.uint32(255)).astype(np.uint8),
            "dst_kind": (pane.ids & np.uint32(255)).astype(np.uint8),
        }
        columns.update(zip(("copies", "bytes", "busy_ns"), pane.sums, strict=True))
        columns["max_ns"] = pane.maxima[0]
        return {}, columns, len(pane.ids)
