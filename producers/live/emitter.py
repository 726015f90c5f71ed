"""What is new in a derived stretch of a live process goes out: numbers that never fall, only steps that were recorded
from start to end, every row once. Pure; times are ns since the epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table
from drumline.producers.batches.live import BatchWriter
from drumline.producers.derive.nccl.kernel_matching import CLOCK_SLACK_NS
from drumline.producers.derive.rows import Derived
from drumline.producers.ipc.buffer_pool import REQUEST_NS
from drumline.producers.live.segment_stretch_end import End
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: Windows of recording that are remembered.
MOST_WINDOWS = 64
#: Losses are remembered for longer than steps wait to be told; ns.
LOSSES_NS = 120_000_000_000
_FAR = np.iinfo(np.int64).max


class Telling:
    """`step`: the last one told, -1 = none. `host_ns`, `gpu_ns`: up to where everything was told. `blind_ns`: since
    when no step that was recorded has had a kernel, 0 = the last one had."""

    def __init__(self, writer: BatchWriter) -> None:
        self.step = -1
        self.host_ns = self.gpu_ns = self.blind_ns = 0
        self._writer, self._offset = writer, 0
        self._ordinals: Counter[int] = Counter()
        self._recorded: list[tuple[int, int]] = []
        self._lost: list[tuple[int, int]] = []

    def recording(self, on: bool, time_ns: int) -> None:
        """Recording was switched on or off. Until it is said, one does not know, and all steps are told."""
        self.blind_ns = 0
        if on:
            self._recorded.append((time_ns, _FAR))
        elif not self._recorded:
            self._recorded.append((time_ns, time_ns))
        elif self._recorded[-1][1] == _FAR:  # a CUPTI that refuses says so again and again
            self._recorded = [*self._recorded[-MOST_WINDOWS:-1], (self._recorded[-1][0], time_ns)]

    def lost(self, first_ns: int, last_ns: int) -> None:
        """Of what the host made meanwhile some has no record: calls of one thread, maybe, and no step of another's."""
        first_ns -= REQUEST_NS
        while self._lost and first_ns <= self._lost[-1][1]:  # apart and in order, however often they are told
            before = self._lost.pop()
            first_ns, last_ns = min(first_ns, before[0]), max(last_ns, before[1])
        self._lost = [*(lost for lost in self._lost if lost[1] >= last_ns - LOSSES_NS), (first_ns, last_ns)]

    def tell(self, found: Derived, unfinished: Array, end: End, now_ns: int, here_ns: int) -> int:
        """Send what is new in a stretch; how many of the steps sent are skipped: those too that ended after `here_ns`,
        or were made while records were dropped, as calls of theirs may be missing, and those without a kernel.
        `unfinished`: ids of ranges that are open at its end."""
        known, ran = self._within(found.steps), _ran(found.steps, found.kernels)
        beyond = (end_ns(found.steps) > here_ns) | self._elsewhere(found.steps, known, ran)
        skipped = found.steps["skipped"] | beyond
        steps = Table({**found.steps.columns, "skipped": skipped}, found.steps.dictionaries)
        fresh = np.flatnonzero(steps["start_ns"] >= self.host_ns)
        numbers = steps["step"] + self._offset
        if len(fresh) and int(numbers[fresh[0]]) <= self.step:  # numbered from the start again, or the same twice
            self._offset += self.step + 1 - int(numbers[fresh[0]])
        seen = self.step
        if len(fresh):
            self.step = int(steps["step"][fresh[-1]]) + self._offset
        new = self._numbered(steps.take(fresh[known[fresh]]))
        mark = min(end.host_ns, end.gpu_ns)
        if new.rows:
            self._writer.write(Topic.STEP, new, mark, now_ns, complete_step=self.step, steps_from=found.steps_from)
            theirs = ran[fresh[known[fresh]]]
            complete = (end_ns(new) <= here_ns) & ~self._dropped(new)  # of others kernels may still come, or are lost
            heard = theirs | complete
            self._see(new.take(heard), theirs[heard])
        half = np.isin(found.collectives["step"], steps["step"][~known | beyond])
        numbered = np.where(half, -1, found.collectives["step"])
        rows = self._numbered(Table({**found.collectives.columns, "step": numbered}, found.collectives.dictionaries))
        inside = rows["step"] >= 0
        ours = np.isin(found.collectives["step"], steps["step"][fresh])
        late = rows["start_ns"] >= self.host_ns - CLOCK_SLACK_NS  # a number may come again
        rows = rows.take(np.where(inside, (rows["step"] > seen) & ours & late, rows["start_ns"] >= self.gpu_ns))
        for communicator in np.unique(rows["communicator"]).tolist():
            own = self._ordered(communicator, rows.take(rows["communicator"] == communicator))
            self._writer.write(Topic.COLLECTIVE, own, mark, now_ns, communicator=communicator, complete_step=self.step)
        ranges = self._numbered(found.ranges)
        recent = (end_ns(ranges) > self.host_ns) & ~np.isin(ranges["id"], unfinished)
        if recent.any():
            self._writer.write(Topic.RANGE, ranges.take(recent), mark, now_ns)
        self.host_ns, self.gpu_ns = end.host_ns, end.gpu_ns
        return int(new["skipped"].sum())

    def _see(self, steps: Table, ran: Array) -> None:
        """Since when have these steps, the next ones, had no kernel?"""
        after = int(np.flatnonzero(np.append(True, ran))[-1])
        if after:
            self.blind_ns = 0
        if after < steps.rows:
            self.blind_ns = self.blind_ns or int(steps["start_ns"][after])

    def _within(self, steps: Table) -> Array:
        """Which steps were recorded from start to end: bool."""
        if not self._recorded:
            return np.ones(steps.rows, bool)
        windows = np.array(self._recorded)
        at = np.maximum(np.searchsorted(windows[:, 0], steps["start_ns"], side="right") - 1, 0)
        inside: Array = (windows[at, 0] <= steps["start_ns"]) & (end_ns(steps) <= windows[at, 1])
        return inside

    def _elsewhere(self, steps: Table, known: Array, ran: Array) -> Array:
        """Of which steps something may not be here; also those after them, whose budgets begin with their end, and
        those before one without a kernel, as a hole does not begin with a step: bool. `known`: which were recorded;
        `ran`: which have a kernel: those of others are elsewhere (another profiler's, or not recorded)."""
        empty = ~ran & (steps["gpu_duration_ns"] > 0) & known
        gone = self._dropped(steps) | empty
        found = gone.copy()
        found[1:] |= gone[:-1]
        found[:-1] |= empty[1:]
        return found

    def _dropped(self, steps: Table) -> Array:
        """Of which steps records may have been dropped: bool."""
        first, last = np.array([*self._lost, (_FAR, _FAR)]).T
        at = np.searchsorted(last, steps["start_ns"])
        found: Array = first[at] <= end_ns(steps)
        return found

    def _ordered(self, communicator: int, rows: Table) -> Table:
        """Ordinals of collectives outside steps count on from stretch to stretch."""
        outside = np.flatnonzero(rows["step"] < 0)
        ordinal = rows["ordinal"].copy()
        ordinal[outside] = self._ordinals[communicator] + np.arange(len(outside))
        self._ordinals[communicator] += len(outside)
        return Table({**rows.columns, "ordinal": ordinal}, rows.dictionaries)

    def _numbered(self, table: Table) -> Table:
        step = np.where(table["step"] >= 0, table["step"] + self._offset, -1)
        return Table({**table.columns, "step": step}, table.dictionaries)


def _ran(steps: Table, kernels: Table) -> Array:
    """In which steps a kernel ran, whenever it began: bool."""
    begin = steps["gpu_start_ns"]
    begun = np.searchsorted(np.sort(kernels["start_ns"]), begin + steps["gpu_duration_ns"])
    found: Array = begun > np.searchsorted(np.sort(end_ns(kernels)), begin, side="right")
    return found
