"""Kernel frequency: launches, GPU time, duration quantiles, grid and block sizes per kernel in a rolling window."""

from __future__ import annotations

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.windows.panes import BUCKET_BITS, Array, Pane, buckets, combine, pane_of_rows, quantiles
from drumline.streams.windows.process_state import OTHER, Names

#: Most rows and bytes of names in a record (Kafka takes 1 MB). Beyond them, the kernels with the least GPU time share a
#: row named OTHER.
MAX_ROWS = 4096
MAX_NAME_BYTES = 500_000
SUMS = ("launches", "gpu_ns", "grid_sum", "block_sum")
MINIMA = ("min_ns",)
MAXIMA = ("max_ns", "grid_max", "block_max")
QUANTILES = {"p50_ns": 0.50, "p95_ns": 0.95, "p99_ns": 0.99}


class KernelFrequency:
    """Groups gpu.kernel.v1 by kernel name. A `Reducer`."""

    source = str(Topic.KERNEL)
    target = str(Topic.KERNEL_FREQUENCY)

    def pane(self, batch: Batch, rows: Array | slice, names: Names) -> Pane:
        """Return the chosen rows as a pane (see `Reducer`)."""
        columns = batch.columns
        used = columns["name"][rows]
        strings = batch.envelope["names"]
        ids = np.zeros(len(strings), np.uint32)
        present = np.flatnonzero(np.bincount(used, minlength=len(strings)))
        ids[present] = names.ids([strings[i] for i in present.tolist()])
        duration = columns["duration_ns"][rows]
        grid = _size(columns, "grid", rows)
        block = _size(columns, "block", rows)
        ones = np.ones(len(used), np.uint64)
        return pane_of_rows(
            ids[used], (ones, duration, grid, block), (duration,), (duration, grid, block), buckets(duration)
        )

    def result(self, pane: Pane, names: Names) -> tuple[dict[str, object], dict[str, Array], int]:
        """Return a window as columns with a dictionary of names (see `Reducer`)."""
        strings = [names.texts[i] for i in pane.ids.tolist()]
        pane, strings = _bounded(pane, strings)
        columns: dict[str, Array] = {"name": np.arange(len(strings), dtype=np.uint32)}
        columns.update(zip(SUMS, pane.sums, strict=True))
        columns.update(zip(MINIMA, pane.minima, strict=True))
        columns.update(zip(MAXIMA, pane.maxima, strict=True))
        estimates = np.clip(quantiles(pane, list(QUANTILES.values())), pane.minima[0], pane.maxima[0])
        columns.update(zip(QUANTILES, estimates, strict=True))
        columns["block_max"] = np.minimum(columns["block_max"], 0xFFFFFFFF).astype(np.uint32)
        return {"names": strings}, columns, len(strings)


def _size(columns: dict[str, Array], name: str, rows: Array | slice) -> Array:
    """Return the blocks of a grid or threads of a block: the product of three sizes, negative ones as 0."""
    x, y, z = (np.maximum(columns[f"{name}_{axis}"][rows], 0).astype(np.uint64) for axis in "xyz")
    product: Array = x * y * z
    return product


def _bounded(pane: Pane, strings: list[str]) -> tuple[Pane, list[str]]:
    """Return the kernels with the most GPU time as far as they fit, and the sum of the others in one row."""
    lengths = np.array([len(text.encode()) for text in strings], np.int64)
    if len(strings) <= MAX_ROWS and int(lengths.sum()) <= MAX_NAME_BYTES:
        return pane, strings
    named = np.array([text != OTHER for text in strings])
    order = np.lexsort((-pane.sums[SUMS.index("gpu_ns")].astype(np.float64), ~named))[: int(named.sum())]
    fits = (np.cumsum(lengths[order]) <= MAX_NAME_BYTES) & (np.arange(len(order)) < MAX_ROWS - 1)
    kept = np.sort(order[fits])
    new = np.full(len(strings), len(kept), np.uint32)
    new[kept] = np.arange(len(kept), dtype=np.uint32)
    shift = np.uint32(BUCKET_BITS)
    group = np.searchsorted(pane.ids, pane.cells >> shift)
    cells = new[group] << shift | pane.cells & np.uint32((1 << BUCKET_BITS) - 1)
    by_cell, by_id = np.argsort(cells, kind="stable"), np.argsort(new, kind="stable")
    moved = Pane(
        new[by_id],
        pane.sums[:, by_id],
        pane.minima[:, by_id],
        pane.maxima[:, by_id],
        cells[by_cell],
        pane.counts[by_cell],
    )
    empty = Pane(*(a[..., :0] for a in (moved.ids, moved.sums, moved.minima, moved.maxima, moved.cells, moved.counts)))
    return combine([moved, empty]), [*(strings[i] for i in kept.tolist()), OTHER]
