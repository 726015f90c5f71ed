"""The contract between the worker and a processing stage. Stages do no I/O, know no Faust, and read no clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from drumline.schemas.batch import Batch
from drumline.schemas.batch_table import BatchTable
from drumline.schemas.parts.merged import Ints
from drumline.schemas.parts.table import MergedParts
from drumline.streams.core.isolation import Incident


class RecordsFailed(Exception):
    """Some records of a table failed, those of other units are applied. `errors`: number of a record -> its error."""

    def __init__(self, errors: Mapping[int, Exception]) -> None:
        super().__init__(f"{len(errors)} records")
        self.errors = errors


class Stage(Protocol):
    """Processing logic of one stage for one partition.

    The worker builds a stage from the partition's state store after each assignment and drops it on revocation.
    Methods are called one at a time from the worker's event loop; they must not block, do I/O or read a clock.
    Changes to the store reach the changelog before the input is acknowledged.

    A stage may count dropped input in `too_old`, `quarantined_rows`, `denied_rows`, `repeated_rows` (rows) and
    `duplicates` (batches that were applied before), and in `conflicts` batches of which another one was applied too.
    An error in one unit concerns no other (isolation.py). `incidents`: units that went into
    quarantine, until the worker takes them.
    """

    incidents: list[Incident]

    def on_batch(self, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
        """Apply an input batch and return the batches to produce.

        `offset` is that of the batch in its own topic and partition, `now_ns` the worker's clock.

        Idempotent: after a crash or rebalance the same (topic, offset) may be applied again. If it raises, the unit of
        the batch is in quarantine; the input goes to the dead-letter topic, and the worker continues.
        """

    def on_merged(self, parts: MergedParts, offsets: Ints, now_ns: int) -> list[Batch]:
        """Apply all parts of one record or more at once; see `on_batch`. `offsets`: of each part, rising.

        May raise RecordsFailed; what the other records made comes with the next call.
        """

    def on_batches(self, table: BatchTable, offsets: Ints, now_ns: int) -> list[Batch]:
        """Apply many input batches at once; see `on_batch`. `offsets`: of each, rising."""

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Close what has timed out and return the batches to produce; called about once a second.

        `caught_up` states that the worker has no lag. Nothing may be treated as silent without it.
        """

    def mark_sent(self, batch: Batch) -> None:
        """Record that the broker acknowledged a returned batch. Unmarked batches are produced again after a restart."""

    def reject(self, batch: Batch, error: Exception) -> None:
        """Put the unit of a returned batch in quarantine: it cannot be published."""

    def release(self) -> None:
        """Give back the budget: the stage is replaced."""
