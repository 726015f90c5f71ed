"""Panes: rolling windows are sums of panes as long as the hop, so a row is counted once, not window/hop times.

A pane holds, per group (a kernel name, a direction of copies), sums, minima, maxima and a histogram of durations.
One operation, `combine`, merges panes into larger panes and into windows. Unsigned 64-bit sums wrap.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.records import UnreadableValue

Array = NDArray[Any]
#: log of the histogram's base: bucket b holds durations in (G^(b-1), G^b].
GAMMA = 1.04
#: Its estimates differ from the true quantile by at most this share (DDSketch, Masson, Rim and Lee, VLDB 2019, 2.1).
RELATIVE_ERROR = (GAMMA - 1) / (GAMMA + 1)
BUCKET_BITS = 10
#: More distinct (group, bucket) pairs than this in one pane halve the histogram's resolution: a state value must
#: stay below Kafka's 1 MB.
MAX_CELLS = 48 * 1024
_LAST_BUCKET = (1 << BUCKET_BITS) - 1
_HEADER = struct.Struct("<BBBBqII")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Pane:
    """Holds the measures of g groups, and h histogram cells.

    Attributes:
        ids: u4[g], rising.
        sums, minima, maxima: u8[S, g], u8[M, g], u8[X, g].
        cells: u4[h], rising: group id << BUCKET_BITS | bucket.
        counts: u4[h].
    """

    ids: Array
    sums: Array
    minima: Array
    maxima: Array
    cells: Array
    counts: Array


def buckets(duration_ns: Array) -> Array:
    """Return the histogram bucket of each duration; u4[n]."""
    exponent = np.ceil(np.log(np.maximum(duration_ns, 1).astype(np.float64)) * (1 / np.log(GAMMA)) - 1e-9)
    bucket: Array = np.minimum(exponent, _LAST_BUCKET).astype(np.uint32)
    return bucket


def pane_of_rows(
    ids: Array, sums: Sequence[Array], minima: Sequence[Array], maxima: Sequence[Array], cell: Array
) -> Pane:
    """Return the pane of n rows. `ids`: u4[n]; measures: n values each; `cell`: buckets(durations), or empty."""
    cells = np.sort(ids << np.uint32(BUCKET_BITS) | cell) if len(cell) else cell.astype(np.uint32)
    first = _firsts(cells)
    counts = np.diff(np.append(first, len(cells))).astype(np.uint32)
    order = np.argsort(ids.astype(np.uint16) if len(ids) and ids.max() < 1 << 16 else ids, kind="stable")
    return Pane(*_grouped(ids, sums, minima, maxima, order), cells[first], counts)


def combine(panes: Sequence[Pane]) -> Pane:
    """Return the sum of panes of the same shape; at least one."""
    if len(panes) == 1:
        return panes[0]
    ids = np.concatenate([pane.ids for pane in panes])
    sums, minima, maxima = (
        np.concatenate([getattr(pane, name) for pane in panes], axis=1) for name in ("sums", "minima", "maxima")
    )
    cells = np.concatenate([pane.cells for pane in panes])
    counts = np.concatenate([pane.counts for pane in panes])
    by_cell = np.argsort(cells, kind="stable")
    cells, counts = cells[by_cell], counts[by_cell]
    first = _firsts(cells)
    merged = np.add.reduceat(counts, first, dtype=np.uint32) if len(first) else counts
    return Pane(*_grouped(ids, sums, minima, maxima, np.argsort(ids, kind="stable")), cells[first], merged)


def coarsen(pane: Pane) -> Pane:
    """Return the pane with at most MAX_CELLS histogram cells: neighbouring buckets are joined into the upper one."""
    shift = 0
    while len(pane.cells) > MAX_CELLS and shift < BUCKET_BITS:
        shift += 1
        cells = pane.cells | np.uint32((1 << shift) - 1)
        first = _firsts(cells)
        pane = Pane(
            pane.ids, pane.sums, pane.minima, pane.maxima, cells[first], np.add.reduceat(pane.counts, first, dtype="u4")
        )
    return pane


def quantiles(pane: Pane, shares: Sequence[float]) -> Array:
    """Return f8[len(shares), g]: per group the duration of rank floor(share * (n - 1)), within RELATIVE_ERROR."""
    group = np.searchsorted(pane.ids, pane.cells >> np.uint32(BUCKET_BITS))
    total = np.bincount(group, weights=pane.counts, minlength=len(pane.ids))
    before = np.concatenate([[0.0], np.cumsum(total)[:-1]])
    reached = np.cumsum(pane.counts, dtype=np.float64)
    bucket = (pane.cells & np.uint32(_LAST_BUCKET)).astype(np.float64)
    middle = 2 * GAMMA**bucket / (GAMMA + 1)
    out = np.zeros((len(shares), len(pane.ids)))
    if len(middle) == 0:
        return out
    for i, share in enumerate(shares):
        rank = np.floor(share * np.maximum(total - 1, 0))
        at = np.searchsorted(reached, before + rank, side="right")
        out[i] = middle[np.minimum(at, len(middle) - 1)]
    return out


def pack_pane(pane: Pane, offset: int) -> bytes:
    """Return the state value: version, shape, last source offset applied, then the arrays, little-endian."""
    shape = (len(pane.sums), len(pane.minima), len(pane.maxima))
    head = _HEADER.pack(_VERSION, *shape, offset, len(pane.ids), len(pane.cells))
    wide = (pane.sums, pane.minima, pane.maxima)
    narrow = (pane.ids, pane.cells, pane.counts)
    return b"".join([head, *(a.astype("<u8").tobytes() for a in wide), *(a.astype("<u4").tobytes() for a in narrow)])


def unpack_pane(data: bytes) -> tuple[Pane, int]:
    """Return (pane, last source offset applied); arrays are read-only views. Raises UnreadableValue."""
    version, s, m, x, offset, groups, cells = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise UnreadableValue(f"pane of version {version}, this program reads {_VERSION}")
    wide = np.frombuffer(data, "<u8", (s + m + x) * groups, _HEADER.size).reshape(s + m + x, groups)
    narrow = np.frombuffer(data, "<u4", groups + 2 * cells, _HEADER.size + wide.nbytes)
    pane = Pane(
        narrow[:groups],
        wide[:s],
        wide[s : s + m],
        wide[s + m :],
        narrow[groups : groups + cells],
        narrow[groups + cells :],
    )
    return pane, offset


def _firsts(rising: Array) -> Array:
    """Return the index of the first of each run of equal values."""
    if len(rising) == 0:
        return np.zeros(0, np.intp)
    return np.flatnonzero(np.concatenate([[True], rising[1:] != rising[:-1]]))


def _grouped(ids: Array, sums: Any, minima: Any, maxima: Any, order: Array) -> tuple[Array, Array, Array, Array]:
    ranked = ids[order]
    first = _firsts(ranked)

    def fold(operation: np.ufunc, values: Any) -> Array:
        rows = [operation.reduceat(v[order], first) if len(first) else v[:0] for v in values]
        return np.array(rows, np.uint64).reshape(len(rows), len(first))

    return ranked[first], fold(np.add, sums), fold(np.minimum, minima), fold(np.maximum, maxima)
