"""Count the input that the units of a stage drop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class InputCounts:
    """Counts what a stage dropped since it was built, over all units: the worker reads it after each record.

    `too_old`: rows that came too late. `duplicates`: batches that were applied before.
    """

    too_old: int = 0
    duplicates: int = 0
