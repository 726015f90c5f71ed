"""Matches of NCCL kernels with calls, remembered from one segment of a live process to the next.

CUPTI's correlation ids count up and wrap around at 32 bits. In a segment they are counted from an *id base*, the last
id that the process is done with, so that their order is that of the launches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.kernels import KnownMatches
from drumline.schemas.columns import Array

_NONE = np.empty(0, np.int64)


class MatchHistory:
    """Remembers the matches of earlier segments; `emitted`: number of pending kernels, in launch order, in them."""

    def __init__(self) -> None:
        self.emitted = 0
        self._id_base = 0
        self._matches: KnownMatches | None = None

    @property
    def begun(self) -> bool:
        """Return whether an earlier segment was derived."""
        return self._matches is not None

    def nccl_kernels(self, kernels: Table, launched: Table) -> Table:
        """Return the NCCL kernels that have a call; see nccl_in_launch_order() and with_launch_time()."""
        return with_launch_time(nccl_in_launch_order(kernels, self._id_base), launched)

    def unwrap_ids(self, kernels: Table) -> Table:
        """Return the kernels with correlation ids that rise."""
        unwrapped = rising_ids(kernels["correlation"], self._id_base)
        return Table({**kernels.columns, "correlation": unwrapped}, kernels.dictionaries)

    def known_matches(self, launched: Table, counted: bool) -> KnownMatches:
        """Return the matches known for kernels with unwrapped ids. `counted`: see NcclKernels."""
        before = self._matches or KnownMatches(_NONE, _NONE)
        correlation = rising_ids(before.correlation, self._id_base).astype(np.int64)
        ids = rising_ids(launched["correlation"], self._id_base).astype(np.int64)
        which, first = np.unique(ids, return_index=True)
        return KnownMatches(correlation, before.call_ns, not self.begun, counted, which, launched["start_ns"][first])

    def learn(self, matches: KnownMatches) -> None:
        """Remember the matches of a segment, of kernels with unwrapped ids."""
        self._matches = replace(matches, correlation=rising_ids(matches.correlation, -self._id_base))

    def keep(self, nccl_kernels: Table, first: int, launches: int) -> None:
        """Note that of `launches` emitted kernels those from the `first` one stay pending."""
        self.emitted = min(launches, nccl_kernels.rows) - first
        if first:
            self._id_base = int(nccl_kernels["correlation"][first - 1])

    def forget(self, kernels_may_come: bool = False) -> None:
        """Forget all matches, as nothing is pending. `kernels_may_come`: kernels of forgotten calls may still come."""
        self._matches, self.emitted = KnownMatches(_NONE, _NONE) if kernels_may_come else None, 0


def nccl_in_launch_order(kernels: Table, id_base: int) -> Table:
    """Return the NCCL kernels that have a call of their own, in launch order, with their `row` in `kernels`."""
    rows = np.zeros(0, np.int64)
    if kernels.rows:
        rows = np.flatnonzero(nccl.is_kernel(kernels.dictionaries["names"])[kernels["name"]] & (kernels["graph"] == 0))
    rows = rows[np.lexsort((kernels["start_ns"][rows], rising_ids(kernels["correlation"][rows], id_base)))]
    columns = {name: kernels[name][rows] for name in ("start_ns", "duration_ns", "correlation")}
    return Table({**columns, "row": rows})


def with_launch_time(nccl_kernels: Table, launched: Table) -> Table:
    """Return the kernels with `launched_ns`: when the host launched each one, or its start where that is unknown."""
    order = np.argsort(launched["correlation"], kind="stable")
    at = np.searchsorted(launched["correlation"][order], nccl_kernels["correlation"])
    which = np.append(order, 0)[at]
    known = np.append(launched["correlation"], 0)[which] == nccl_kernels["correlation"]
    known &= at < launched.rows
    launched_ns = np.where(known, np.append(launched["start_ns"], 0)[which], nccl_kernels["start_ns"])
    return Table({**nccl_kernels.columns, "launched_ns": launched_ns}, nccl_kernels.dictionaries)


def rising_ids(correlation: Array, id_base: int) -> Array:
    """Return correlation ids in the order of the launches, also where CUPTI's 32 bits wrap around."""
    rising: Array = correlation.astype(np.uint32) + np.array([(1 << 31) - id_base & 0xFFFF_FFFF], np.uint32)
    return rising
