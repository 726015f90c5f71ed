"""What a processing stage is to the worker. Stages are pure: no Faust, no I/O, the clock is an argument."""

from __future__ import annotations

from typing import Protocol

from drumline.schemas.batch import Batch


class Stage(Protocol):
    """One stage for one partition, built from a store that holds that partition's state and nothing else.

    What a stage drops it counts in `too_old` (rows) and `duplicates` (batches that came again), where it has such.
    Calls come one at a time and never block. After a rebalance or a restart a new stage is built from the store.
    """

    def on_batch(self, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
        """Apply one batch; `offset` is that of its own topic. Applying it again changes nothing. What to send."""

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """About once a second. `caught_up`: the worker has no lag, so silence is silence. What to send."""

    def mark_sent(self, batch: Batch) -> None:
        """The broker has acknowledged this batch, one that an earlier call returned."""
