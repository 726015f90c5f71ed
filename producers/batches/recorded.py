"""One feed: all batches of one (process, topic, key), made when they are due."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table, compacted
from drumline.producers.batches.cuts import Cuts, cut
from drumline.producers.derive.rows import Derived
from drumline.producers.identity import Identity
from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

TIME = {Topic.DEVICE: "time_ns"}
#: Topics whose key is the job.
BY_JOB = (Topic.STEP, Topic.DEVICE)


@dataclass(frozen=True)
class Shift:
    """What a repetition adds: ns to times, a number to steps, a number to ordinals outside steps."""

    time_ns: int = 0
    step: int = 0


@dataclass(frozen=True)
class Feed:
    """`communicator`: hash of a collective feed, else None. `complete_step`: one a batch where the topic has it.
    `dropped`: records lost before the first batch. `steps_from`: of steps, see steps.py."""

    topic: Topic
    table: Table
    cuts: Cuts
    communicator: int | None = None
    complete_step: Array | None = None
    dropped: int = 0
    steps_from: str = ""

    @property
    def rows(self) -> int:
        return self.table.rows

    def key(self, identity: Identity, communicator: str = "") -> str:
        """The Kafka key, see schemas.topics."""
        if self.topic is Topic.COLLECTIVE:
            return f"{identity.job}:{communicator}"
        return identity.job if self.topic in BY_JOB else identity.process_id

    def batch(
        self, i: int, identity: Identity, sequence: int, repetition: int, shift: Shift, communicator: str
    ) -> Batch:
        """The i-th batch in the `repetition`-th (0, 1, ...) run through the feed; `communicator` as 16 hex digits."""
        spec = model(self.topic)
        time_column = TIME.get(self.topic, "start_ns")
        index = self.cuts.order[self.cuts.low[i] : self.cuts.high[i]]
        index = index[np.argsort(self.table[time_column][index], kind="stable")]
        closed = int(self.cuts.time_ns[i]) + shift.time_ns
        envelope: dict[str, Any] = {
            **identity.envelope(),
            "sequence": sequence,
            "dropped_before": self.dropped if i == 0 else 0,
            "rows": len(index),
            "base_time_ns": closed,
            "watermark_ns": int(self.cuts.watermark_ns[i]) + shift.time_ns,
            "sent_ns": closed,
        }
        if self.communicator is not None:
            envelope["communicator"] = communicator
        if self.topic is Topic.STEP:
            envelope["steps_from"] = self.steps_from
        if self.topic is Topic.DEVICE:
            envelope["gpu_index"] = identity.gpu_index
        if self.complete_step is not None:
            step = int(self.complete_step[i])
            envelope["complete_step"] = step + shift.step if step >= 0 else -1
        columns: dict[str, Array] = {}
        for column in spec.columns:
            values = self.table[column.name][index].astype(column.dtype, copy=False)
            if column.base:
                values = values + shift.time_ns
            elif column.name == "step":
                values = np.where(values >= 0, values + shift.step, values)
            elif column.dictionary:
                values, envelope[column.dictionary] = compacted(values, self.table.dictionaries[column.dictionary])
            columns[column.name] = values
        if len(index):
            envelope["base_time_ns"] = int(columns[time_column][0])
            if self.topic is Topic.COLLECTIVE and repetition:
                outside = columns["step"] < 0
                columns["ordinal"] = columns["ordinal"] + np.where(outside, repetition * self._outside, 0).astype("<i4")
        return Batch(self.topic, envelope, columns)

    @property
    def _outside(self) -> int:
        return int((self.table["step"] < 0).sum())


def feeds(derived: Derived, first_ns: int, last_ns: int, topics: Collection[Topic]) -> list[Feed]:
    """All feeds of a process that lives from `first_ns` to `last_ns`; a topic without any rows has none."""
    done = steps_done(derived.steps)
    made: list[Feed] = []
    simple = ((Topic.KERNEL, derived.kernels), (Topic.MEMCPY, derived.copies), (Topic.RANGE, derived.ranges))
    for topic, table in simple:
        if topic in topics and table.rows:
            cuts = cut(table["start_ns"], end_ns(table), first_ns, last_ns)
            made.append(Feed(topic, table, cuts, dropped=derived.invalid.get(topic, 0)))
    if Topic.DEVICE in topics and derived.samples.rows:
        at = derived.samples["time_ns"]
        made.append(Feed(Topic.DEVICE, derived.samples, cut(at, at, first_ns, last_ns)))
    if Topic.STEP in topics and derived.steps.rows:
        cuts = cut(derived.steps["start_ns"], done, first_ns, last_ns)
        complete = _complete(cuts, derived.steps, done, None)
        made.append(Feed(Topic.STEP, derived.steps, cuts, complete_step=complete, steps_from=derived.steps_from))
    if Topic.COLLECTIVE in topics:
        for communicator in np.unique(derived.collectives["communicator"]).tolist():
            own = derived.collectives.take(derived.collectives["communicator"] == communicator)
            cuts = cut(own["start_ns"], end_ns(own), int(own["start_ns"].min()), last_ns)
            complete = _complete(cuts, derived.steps, done, own["step"])
            made.append(Feed(Topic.COLLECTIVE, own, cuts, communicator, complete))
    return made


def steps_done(steps: Table) -> Array:
    """When all of a step is known: its host range has ended and its last collective too; int64 ns, never falling."""
    if steps.rows == 0:
        return np.empty(0, np.int64)
    host = steps["start_ns"] + steps["duration_ns"]
    latest: Array = np.maximum.accumulate(np.maximum(host, steps["gpu_start_ns"] + steps["gpu_duration_ns"]))
    return latest


def _complete(cuts: Cuts, steps: Table, done: Array, row_steps: Array | None) -> Array:
    """complete_step of each batch: the newest step that is done and has no row still to come."""
    if steps.rows == 0:
        return np.full(len(cuts), -1, np.int64)
    at = np.searchsorted(done, cuts.time_ns, side="right") - 1
    newest = np.where(at >= 0, steps["step"][at], -1)
    pending = steps["step"] if row_steps is None else np.where(row_steps >= 0, row_steps, np.iinfo(np.int64).max)
    complete: Array = np.minimum(newest, cuts.least_later(pending) - 1)
    return complete
