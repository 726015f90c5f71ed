"""Pairs of NCCL kernels and calls, remembered from one stretch of a live process to the next (live.py). Pure.

CUPTI's correlation ids count up and wrap around at 32 bits. Of a stretch they are counted from a *turn*, the last id
that the process is done with, so that their order is that of the launches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import names as nccl
from drumline.producers.derive.nccl.kernels import KnownMatches
from drumline.schemas.columns import Array

_NONE = np.empty(0, np.int64)


class Pairs:
    """`begun`: by a stretch before. `again`: how many of the kernels that wait were told already, in launch order."""

    def __init__(self) -> None:
        self.again = 0
        self._turn = 0
        self._told: KnownMatches | None = None

    @property
    def begun(self) -> bool:
        return self._told is not None

    def launches(self, kernels: Table, launched: Table) -> Table:
        """NCCL kernels that have a call of their own: see communication() and launched_at()."""
        return launched_at(communication(kernels, self._turn), launched)

    def turned(self, kernels: Table) -> Table:
        """With correlation ids that rise."""
        return Table(
            {**kernels.columns, "correlation": since(kernels["correlation"], self._turn)}, kernels.dictionaries
        )

    def told(self, launched: Table, counted: bool) -> KnownMatches:
        """What is known of kernels that are `turned`. `counted`: see Told."""
        before = self._told or KnownMatches(_NONE, _NONE)
        correlation = since(before.correlation, self._turn).astype(np.int64)
        which, first = np.unique(since(launched["correlation"], self._turn).astype(np.int64), return_index=True)
        return KnownMatches(correlation, before.call_ns, not self.begun, counted, which, launched["start_ns"][first])

    def learn(self, told: KnownMatches) -> None:
        """The pairs of a stretch, of kernels that were `turned`."""
        self._told = replace(told, correlation=since(told.correlation, -self._turn))

    def keep(self, own: Table, first: int, launches: int) -> None:
        """Of `launches` kernels that were told, these wait on from the `first` one."""
        self.again = min(launches, own.rows) - first
        if first:
            self._turn = int(own["correlation"][first - 1])

    def forget(self, calls_went: bool = False) -> None:
        """Nothing waits on. `calls_went`: kernels of theirs may still come."""
        self._told, self.again = KnownMatches(_NONE, _NONE) if calls_went else None, 0


def communication(kernels: Table, turn: int) -> Table:
    """NCCL kernels that have a call of their own, in launch order, with their `row` in `kernels`."""
    own = np.zeros(0, np.int64)
    if kernels.rows:
        own = np.flatnonzero(nccl.is_kernel(kernels.dictionaries["names"])[kernels["name"]] & (kernels["graph"] == 0))
    own = own[np.lexsort((kernels["start_ns"][own], since(kernels["correlation"][own], turn)))]
    columns = {name: kernels[name][own] for name in ("start_ns", "duration_ns", "correlation")}
    return Table({**columns, "row": own})


def launched_at(own: Table, launched: Table) -> Table:
    """With `launched_ns`: when the host launched each kernel where that is known (`launched`, see cupti_decode), else
    when it ran."""
    order = np.argsort(launched["correlation"], kind="stable")
    at = np.searchsorted(launched["correlation"][order], own["correlation"])
    which = np.append(order, 0)[at]
    known = np.append(launched["correlation"], 0)[which] == own["correlation"]
    known &= at < launched.rows
    found = np.where(known, np.append(launched["start_ns"], 0)[which], own["start_ns"])
    return Table({**own.columns, "launched_ns": found}, own.dictionaries)


def since(correlation: Array, turn: int) -> Array:
    """Correlation ids so that the order is that of the launches, also where CUPTI's 32 bits wrap around."""
    shifted: Array = correlation.astype(np.uint32) + np.array([(1 << 31) - turn & 0xFFFF_FFFF], np.uint32)
    return shifted
