"""Batches of a recorded process, one feed for each (process, topic, key); a replay takes them when they are due."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table
from drumline.producers.batching.builder import BatchHeader, make_batch, time_column
from drumline.producers.batching.cuts import BatchPlan, plan_batches
from drumline.producers.derive.rows import Derived
from drumline.producers.identity import Identity
from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import rows_inside
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


@dataclass(frozen=True)
class LoopOffset:
    """Offsets that one repetition of a recording adds to times (ns) and step numbers."""

    repetition: int = 0
    time_ns: int = 0
    step: int = 0


@dataclass(frozen=True)
class Feed:
    """All batches of one (process, topic, key) of a recorded job.

    Attributes:
        plan: rows and times of each batch.
        communicator: hash of a collective feed, else None.
        complete_step: [batches], where the topic has it.
        dropped: records lost before the first batch.
        steps_from: source of the steps (derive.steps), for steps only.
    """

    topic: Topic
    table: Table
    plan: BatchPlan
    communicator: int | None = None
    complete_step: Array | None = None
    dropped: int = 0
    steps_from: str = ""

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.table.rows

    def batch(self, i: int, identity: Identity, offset: LoopOffset, communicator: str) -> Batch:
        """Return the i-th batch in one repetition of the feed; `communicator` is the text of the hash."""
        index = self.plan.order[self.plan.low[i] : self.plan.high[i]]
        index = index[np.argsort(self.table[time_column(self.topic)][index], kind="stable")]
        complete = -1 if self.complete_step is None else int(self.complete_step[i])
        header = BatchHeader(
            sequence=offset.repetition * len(self.plan) + i,
            dropped_before=self.dropped if i == 0 else 0,
            closed_ns=int(self.plan.time_ns[i]) + offset.time_ns,
            watermark_ns=int(self.plan.watermark_ns[i]) + offset.time_ns,
            communicator=communicator,
            complete_step=complete + offset.step if complete >= 0 else -1,
            steps_from=self.steps_from,
        )
        return make_batch(self.topic, identity, header, self._shifted(index, offset))

    def _shifted(self, index: Array, offset: LoopOffset) -> Table:
        """Return the rows at `index` with the times, steps and ordinals of one repetition."""
        columns: dict[str, Array] = {}
        for column in model(self.topic).columns:
            values = self.table[column.name][index]
            if column.base:
                values = values + offset.time_ns
            elif column.name == "step":
                values = np.where(values >= 0, values + offset.step, values)
            columns[column.name] = values
        if self.topic is Topic.COLLECTIVE and offset.repetition:  # ordinals outside steps count on
            outside = columns["step"] < 0
            columns["ordinal"] = columns["ordinal"] + np.where(outside, offset.repetition * self._outside, 0)
        return Table(columns, self.table.dictionaries)

    @property
    def _outside(self) -> int:
        return int((self.table["step"] < 0).sum())


def feeds(derived: Derived, first_ns: int, last_ns: int, topics: Collection[Topic]) -> list[Feed]:
    """Return the feeds of a process that runs from `first_ns` to `last_ns`; a topic without rows has none."""
    done = steps_done(derived.steps)
    result: list[Feed] = []
    simple = ((Topic.KERNEL, derived.kernels), (Topic.MEMCPY, derived.copies), (Topic.RANGE, derived.ranges))
    for topic, table in simple:
        if topic in topics and table.rows:
            table, outside = _bounded(topic, table)
            plan = plan_batches(table["start_ns"], end_ns(table), first_ns, last_ns)
            result.append(Feed(topic, table, plan, dropped=derived.invalid.get(topic, 0) + outside))
    if Topic.DEVICE in topics and derived.samples.rows:
        samples, outside = _bounded(Topic.DEVICE, derived.samples)
        at = samples["time_ns"]
        result.append(Feed(Topic.DEVICE, samples, plan_batches(at, at, first_ns, last_ns), dropped=outside))
    if Topic.STEP in topics and derived.steps.rows:
        plan = plan_batches(derived.steps["start_ns"], done, first_ns, last_ns)
        complete = _complete(plan, derived.steps, done, None)
        result.append(Feed(Topic.STEP, derived.steps, plan, complete_step=complete, steps_from=derived.steps_from))
    if Topic.COLLECTIVE in topics:
        for communicator in np.unique(derived.collectives["communicator"]).tolist():
            table = derived.collectives.take(derived.collectives["communicator"] == communicator)
            plan = plan_batches(table["start_ns"], end_ns(table), int(table["start_ns"].min()), last_ns)
            complete = _complete(plan, derived.steps, done, table["step"])
            result.append(Feed(Topic.COLLECTIVE, table, plan, communicator, complete))
    return result


def _bounded(topic: Topic, table: Table) -> tuple[Table, int]:
    """Return the rows within the bounds of the contract, and the number of others."""
    inside = rows_inside(topic, table.columns)
    return (table, 0) if inside is None else (table.take(inside), int((~inside).sum()))


def steps_done(steps: Table) -> Array:
    """Return the time at which each step's host range and last collective have ended; int64 ns, never falling."""
    if steps.rows == 0:
        return np.empty(0, np.int64)
    host = steps["start_ns"] + steps["duration_ns"]
    latest: Array = np.maximum.accumulate(np.maximum(host, steps["gpu_start_ns"] + steps["gpu_duration_ns"]))
    return latest


def _complete(plan: BatchPlan, steps: Table, done: Array, row_steps: Array | None) -> Array:
    """Return `complete_step` of each batch: the newest step that is done and has no row still to come."""
    if steps.rows == 0:
        return np.full(len(plan), -1, np.int64)
    at = np.searchsorted(done, plan.time_ns, side="right") - 1
    newest = np.where(at >= 0, steps["step"][at], -1)
    pending = steps["step"] if row_steps is None else np.where(row_steps >= 0, row_steps, np.iinfo(np.int64).max)
    complete: Array = np.minimum(newest, plan.least_later(pending) - 1)
    return complete
