"""Emission of the rows that a derived segment adds to those of the segments before. Times are ns since the epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table
from drumline.producers.batching.live import BatchWriter, FeedProgress
from drumline.producers.derive.nccl.kernel_matching import CLOCK_SLACK_NS
from drumline.producers.derive.rows import Derived
from drumline.producers.ipc.timing import REQUEST_NS
from drumline.producers.live_matching.segment import SegmentEnd
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: Recording intervals that are remembered.
MOST_INTERVALS = 64
#: Losses are remembered for longer than steps wait to be emitted; ns.
LOSSES_NS = 120_000_000_000
_FAR = np.iinfo(np.int64).max


class RowEmitter:
    """Emits the rows of a derived segment that were not emitted before.

    IncrementalDerivation owns it. Guarantees: step numbers increase; a step is emitted only if it was recorded from
    start to end; each row once.

    Attributes:
        step: number of the last emitted step, -1 = none.
        host_ns, gpu_ns: end of the emitted part, in host and GPU time.
        no_kernels_since_ns: begin of the first of the latest steps that were recorded without a kernel, 0 = the last
            one had kernels.
    """

    def __init__(self, writer: BatchWriter) -> None:
        self.step = -1
        self.host_ns = self.gpu_ns = self.no_kernels_since_ns = 0
        self._writer, self._offset = writer, 0
        self._ordinals: Counter[int] = Counter()
        self._recorded: list[tuple[int, int]] = []
        self._lost: list[tuple[int, int]] = []

    def recording(self, on: bool, time_ns: int) -> None:
        """Note that recording was switched on or off; before the first call, all steps count as recorded."""
        self.no_kernels_since_ns = 0
        if on:
            self._recorded.append((time_ns, _FAR))
        elif not self._recorded:
            self._recorded.append((time_ns, time_ns))
        elif self._recorded[-1][1] == _FAR:  # where CUPTI denies recording, "off" comes again and again
            self._recorded = [*self._recorded[-MOST_INTERVALS:-1], (self._recorded[-1][0], time_ns)]

    def lost(self, first_ns: int, last_ns: int) -> None:
        """Note a loss: some activity of the host between these times has no record, perhaps of one thread only."""
        first_ns -= REQUEST_NS
        while self._lost and first_ns <= self._lost[-1][1]:  # keeps losses disjoint and sorted
            before = self._lost.pop()
            first_ns, last_ns = min(first_ns, before[0]), max(last_ns, before[1])
        self._lost = [*(lost for lost in self._lost if lost[1] >= last_ns - LOSSES_NS), (first_ns, last_ns)]

    def emit(
        self, segment: Derived, open_range_ids: Array, end: SegmentEnd, now_ns: int, complete_until_ns: int,
        ranges_only: bool = False,
    ) -> int:  # fmt: skip
        """Write new rows to the batch writer and return how many of the emitted steps are marked `skipped`.

        A step is skipped if it ended after `complete_until_ns` (CUPTI may still hold its records), overlaps a known
        loss, has no kernel, or is next to such a step. `open_range_ids`: ranges that are open at the segment's end.
        `ranges_only`: collectives and steps have another source.
        """
        steps, last_step = segment.steps, self.step
        recorded, has_kernel = self._recorded_steps(steps), _has_kernel(steps, segment.kernels)
        incomplete = (end_ns(steps) > complete_until_ns) | self._incomplete(steps, recorded, has_kernel)
        fresh = np.flatnonzero(steps["start_ns"] >= self.host_ns)
        self._number(steps["step"][fresh])
        emitted = fresh[recorded[fresh]]
        skipped = steps["skipped"] | incomplete
        new = self._numbered(Table({**steps.columns, "skipped": skipped}, steps.dictionaries).take(emitted))
        progress = FeedProgress(now_ns, min(end.host_ns, end.gpu_ns), self.step)
        if new.rows:
            if not ranges_only:
                self._writer.write(Topic.STEP, new, progress, steps_from=segment.steps_from)
            # Kernels of other steps may still come, or are lost.
            certain = has_kernel[emitted] | ((end_ns(new) <= complete_until_ns) & ~self._in_losses(new))
            self._track_missing_kernels(new.take(certain), has_kernel[emitted][certain])
        outside = steps["step"][~recorded | incomplete]
        self._emit_collectives(segment.collectives, steps["step"][fresh], outside, last_step, progress)
        ranges = self._numbered(segment.ranges)
        recent = (end_ns(ranges) > self.host_ns) & ~np.isin(ranges["id"], open_range_ids)
        if recent.any():
            self._writer.write(Topic.RANGE, ranges.take(recent), progress)
        self.host_ns, self.gpu_ns = end.host_ns, end.gpu_ns
        return int(new["skipped"].sum())

    def _number(self, fresh: Array) -> None:
        """Move the offset so that the numbers of fresh steps continue those emitted before."""
        if not len(fresh):
            return
        if int(fresh[0]) + self._offset <= self.step:  # numbered from the start again, or the same twice
            self._offset = self.step + 1 - int(fresh[0])
        self.step = int(fresh[-1]) + self._offset

    def _emit_collectives(
        self, collectives: Table, fresh: Array, outside: Array, last_step: int, progress: FeedProgress
    ) -> None:
        """Write new collectives by communicator; those of steps in `outside` count as outside any step."""
        numbered = np.where(np.isin(collectives["step"], outside), -1, collectives["step"])
        rows = self._numbered(Table({**collectives.columns, "step": numbered}, collectives.dictionaries))
        late = rows["start_ns"] >= self.host_ns - CLOCK_SLACK_NS  # a number may come again
        in_new_step = (rows["step"] > last_step) & np.isin(collectives["step"], fresh) & late
        rows = rows.take(np.where(rows["step"] >= 0, in_new_step, rows["start_ns"] >= self.gpu_ns))
        for communicator in np.unique(rows["communicator"]).tolist():
            table = self._ordered(communicator, rows.take(rows["communicator"] == communicator))
            self._writer.write(Topic.COLLECTIVE, table, progress, communicator=communicator)

    def _track_missing_kernels(self, steps: Table, has_kernel: Array) -> None:
        """Update `no_kernels_since_ns` by the next steps."""
        after = int(np.flatnonzero(np.append(True, has_kernel))[-1])
        if after:
            self.no_kernels_since_ns = 0
        if after < steps.rows:
            self.no_kernels_since_ns = self.no_kernels_since_ns or int(steps["start_ns"][after])

    def _recorded_steps(self, steps: Table) -> Array:
        """Return which steps were recorded from start to end: bool."""
        if not self._recorded:
            return np.ones(steps.rows, bool)
        intervals = np.array(self._recorded)
        at = np.maximum(np.searchsorted(intervals[:, 0], steps["start_ns"], side="right") - 1, 0)
        inside: Array = (intervals[at, 0] <= steps["start_ns"]) & (end_ns(steps) <= intervals[at, 1])
        return inside

    def _incomplete(self, steps: Table, recorded: Array, has_kernel: Array) -> Array:
        """Return which steps may lack records, with their neighbours: bool.

        The step after such a step begins its budget with that step's end. The step before one without a kernel may
        lack kernels too, as a loss does not begin with a step. A recorded step without kernels means that its kernels
        were lost, or went to another profiler.
        """
        empty = ~has_kernel & (steps["gpu_duration_ns"] > 0) & recorded
        damaged = self._in_losses(steps) | empty
        result = damaged.copy()
        result[1:] |= damaged[:-1]
        result[:-1] |= empty[1:]
        return result

    def _in_losses(self, steps: Table) -> Array:
        """Return which steps overlap a known loss: bool."""
        first, last = np.array([*self._lost, (_FAR, _FAR)]).T
        at = np.searchsorted(last, steps["start_ns"])
        overlap: Array = first[at] <= end_ns(steps)
        return overlap

    def _ordered(self, communicator: int, rows: Table) -> Table:
        """Return the rows with ordinals outside steps that continue those of the segment before."""
        outside = np.flatnonzero(rows["step"] < 0)
        ordinal = rows["ordinal"].copy()
        ordinal[outside] = self._ordinals[communicator] + np.arange(len(outside))
        self._ordinals[communicator] += len(outside)
        return Table({**rows.columns, "ordinal": ordinal}, rows.dictionaries)

    def _numbered(self, table: Table) -> Table:
        step = np.where(table["step"] >= 0, table["step"] + self._offset, -1)
        return Table({**table.columns, "step": step}, table.dictionaries)


def _has_kernel(steps: Table, kernels: Table) -> Array:
    """Return in which steps a kernel ran, whenever it began: bool."""
    begin = steps["gpu_start_ns"]
    begun = np.searchsorted(np.sort(kernels["start_ns"]), begin + steps["gpu_duration_ns"])
    ran: Array = begun > np.searchsorted(np.sort(end_ns(kernels)), begin, side="right")
    return ran
