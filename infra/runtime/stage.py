"""The contract between a processing stage and what runs it: the stream worker, and the agent for rows of its host.

Stages do no I/O, know no Faust, and read no clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from drumline.schemas.batch import Batch
from drumline.schemas.record_table import Ints, RecordTable

#: Why a unit is in quarantine, as metrics have it.
FAILED, BUDGET = "failed", "budget"


@dataclass(slots=True)
class Incident:
    """Describes a unit that went into quarantine, for the log, the metric and the result row.

    `unit`: its key. `reason`: FAILED or BUDGET. `at_ns`, `until_ns`: worker's clock at the error and at the release, 0
    while it is unknown, after a restart.
    """

    unit: Hashable
    job: str
    run: str
    reason: str
    error: Exception
    at_ns: int
    until_ns: int


class Stage(Protocol):
    """Processing logic of one stage for one partition.

    The worker builds a stage from the partition's state store after each assignment and drops it on revocation.
    Methods are called one at a time from the worker's event loop; they must not block, do I/O or read a clock.
    Changes to the store reach the changelog before the input is acknowledged.

    A stage may count dropped input in `too_old`, `quarantined_rows`, `denied_rows`, `repeated_rows` (rows) and
    `duplicates` (batches that were applied before), and in `conflicts` batches of which another one was applied too.
    An error in one unit concerns no other (isolation.py). `incidents`: units that went into
    quarantine, until the worker takes them. `failed`: number of a record of the last table -> its error. A stage with
    results that are still to be produced has their number as `open_windows`.
    """

    incidents: list[Incident]
    failed: dict[int, Exception]

    def apply(self, table: RecordTable, offsets: Ints, now_ns: int) -> list[Batch]:
        """Apply the parts of input records and return the batches to produce.

        `offsets`: of each part in its topic and partition, rising. `now_ns`: the worker's clock.

        Idempotent: after a crash or rebalance the same (topic, offset) may be applied again. A unit that fails is in
        quarantine; `failed` has the records of its parts, which go to the dead-letter topic, and the others go on.
        """

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Close what has timed out and return the batches to produce; called about once a second.

        `caught_up` states that the worker has no lag. Nothing may be treated as silent without it.
        """

    def mark_sent(self, batch: Batch) -> None:
        """Record that the broker acknowledged a returned batch. Unmarked batches are produced again after a restart."""

    def reject(self, batch: Batch, error: Exception) -> None:
        """Put the unit of a returned batch in quarantine: it cannot be published."""

    def forget_job(self, job: str) -> None:
        """Delete all state of a job, which somebody wants forgotten; results of it that are on their way stay sent."""

    def release(self) -> None:
        """Give back the budget: the stage is replaced."""


def open_windows(stage: Stage) -> int:
    """Return the number of a stage's results that are still to be produced, for the first time or again."""
    return int(getattr(stage, "open_windows", 0))
