"""A live process's activity, as it comes, into the rows that are published: derive() over stretches that are complete.

Kernels and copies are published at once. Steps, collectives and ranges need more: the k-th NCCL kernel belongs to the
k-th NCCL call, a step's budget ends with its last collective, and the GPU is behind the host. So a stretch ends with a
step all of whose collectives have run, and what lies behind it is kept. Of its last steps calls and NCCL kernels
are kept too, with the pairs that they made, and derived again with the next one: the next step's budget begins where
their collectives end, and where a kernel was lost only a row of steps tells which kernels belong to which calls. Where
a job's steps can be found again at all, a stretch ends with one that was: counts alone cannot tell a lost kernel from a
late one. Without steps, a stretch ends where the GPU has caught up with the host.

Pure: no clock, no I/O. Times are ns since the epoch.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from drumline.producers.activity import Activity, empty, ends
from drumline.producers.calls import Calls
from drumline.producers.collectives import CLOCK_SLACK_NS
from drumline.producers.derive import Derived, derive
from drumline.producers.outbox import Outbox
from drumline.producers.ranges import ranges as nested_ranges
from drumline.producers.resync import Told
from drumline.producers.steps import OPTIMIZER_PATTERN, STEP_PATTERN, Steps, marked_steps
from drumline.producers.stretch import (
    End,
    Words,
    before_end,
    certain,
    closed,
    communication,
    host_launches,
    lag,
    one,
    since,
    some,
    turned,
)
from drumline.producers.table import Table
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: Kernels reach us this much later than they end, at most, in a process that is well.
SETTLE_NS = 1_000_000_000
#: A step that is open for longer does not hold back what lies before its end.
PATIENCE_NS = 60_000_000_000
#: Windows of recording that are remembered.
MOST_WINDOWS = 64
_FAR = np.iinfo(np.int64).max
#: Steps of which calls and NCCL kernels are kept: enough to find whole steps again (usual.py, resync.py) and more.
KEPT_STEPS = 8
#: Steps that wait for one to be found again behind them (resync.py), at most; then they are told as skipped.
MOST_WAITING = 2 * KEPT_STEPS
#: Kernels kept for a stretch that does not end; beyond it the stretch is given up.
MOST_KERNELS = 1_000_000


#: What is kept of a kernel: what steps and collectives are derived from, half of its columns.
KEPT = ("name", "start_ns", "duration_ns", "stream", "correlation", "graph", "grid_x", "grid_y", "grid_z")


class Live:
    """One process. `counts`: what could not be told so far. `settled_ns`: everything that ended before is here."""

    def __init__(self, outbox: Outbox, pattern: str = STEP_PATTERN) -> None:
        self.counts: Counter[str] = Counter()
        self._outbox, self._pattern = outbox, pattern
        self._kernels: list[Table] = []
        self._copies: list[Table] = []
        self._markers: list[Table] = []
        self._payloads: list[Table] = []
        self._began = self._newest = self._settled = self._host_end = self._gpu_end = 0
        self._step, self._offset = -1, 0
        self._ordinals: Counter[int] = Counter()
        self._turn = self._again = 0
        self._told: Told | None = None
        self._found_again = self._lost = False
        self._names, self._domains = Words(), Words()
        self._recorded: list[tuple[int, int]] = []

    def recording(self, on: bool, time_ns: int) -> None:
        """Recording was switched on or off. Steps that the API marks go on without it, but nothing is known of them."""
        if on:
            self._recorded.append((time_ns, _FAR))
        elif self._recorded:
            self._recorded = [*self._recorded[-MOST_WINDOWS:-1], (self._recorded[-1][0], time_ns)]

    def lost(self) -> None:
        """Records were dropped: from now on counts of kernels say nothing, until recording is switched off and on."""
        self._lost = True

    def add(self, kernels: Table, copies: Table, markers: Table, payloads: Table) -> None:
        """What came with one buffer; columns as in Activity. Words of `markers` are copied."""
        markers = self._named(markers) if markers.rows else markers
        if markers.rows and not self._began:
            self._began = int(markers["time_ns"].min())
        slim = Table({name: kernels[name] for name in KEPT} if kernels.rows else {}, kernels.words)
        for table, pending in (
            (slim, self._kernels),
            (copies, self._copies),
            (markers, self._markers),
            (payloads, self._payloads),
        ):
            if table.rows:
                pending.append(table)
        if kernels.rows:
            self._newest = max(self._newest, int(ends(kernels).max()))

    def advance(self, now_ns: int, final: bool = False) -> None:
        """Publish what is complete. `final`: nothing follows (the process ended, or recording was switched off)."""
        settled, self._settled = self._settled, self._newest
        if now_ns - self._newest > SETTLE_NS:
            settled = self._newest  # quiet for so long: all of it is here
        if final:
            settled = now_ns
        if self._markers:
            self._stretch(settled, now_ns, final)
            if final and self._markers:
                self._stretch(settled, now_ns, final)  # what lies behind the last step
        else:  # nobody asks for steps, collectives or ranges
            self._kernels.clear()
            self._copies.clear()
        if final:
            for pending in (self._kernels, self._copies, self._markers, self._payloads):
                pending.clear()
            self._told, self._found_again, self._lost = None, False, False
        elif sum(t.rows for t in self._kernels) > MOST_KERNELS:
            self.give_up()
        self._outbox.beat(now_ns, self.watermark(now_ns), self._step)

    def watermark(self, now_ns: int) -> int:
        """No row that is still to come starts before this, as far as one can know: a kernel that runs is not here."""
        return min(now_ns - 2 * SETTLE_NS, self._host_end or now_ns - 2 * SETTLE_NS)

    def _stretch(self, settled: int, now_ns: int, final: bool) -> None:
        markers = one(self._markers)
        kernels = one(self._kernels) if self._kernels else empty(Topic.KERNEL)
        copies = one(self._copies) if self._copies else empty(Topic.MEMCPY)
        payloads = one(self._payloads) if self._payloads else Activity().payloads
        ranges, _ = nested_ranges(markers)
        steps, _ = marked_steps(ranges, self._pattern)
        launches = host_launches(ranges, payloads, steps)
        patterns = (self._pattern, OPTIMIZER_PATTERN)
        named = any(re.search(pattern, name) for name in self._names.words for pattern in patterns)
        own = communication(kernels, self._turn)
        waits = None if final else self._step >= 0 or named
        end = self._end(steps, launches, own, settled, now_ns, waits, _FAR)
        if end is None:
            return
        # A kernel behind the stretch that ran before the host was there is one too many in it: the first ones belong
        # to calls that were not recorded (recording began between a call and its kernel).
        surplus = int((own["start_ns"][end.launches :] < end.host_ns - CLOCK_SLACK_NS).sum())
        if surplus:
            self.counts["kernels_without_call"] += surplus
            kernels = kernels.take(np.setdiff1d(np.arange(kernels.rows), own["row"][:surplus]))
            self._kernels, self._again = some(kernels), max(0, self._again - surplus)
            return  # the next turn takes the stretch
        complete = final and own.rows == len(launches.start_ns)
        found, chosen, dangling = self._derived(kernels, copies, markers, payloads, own, end, complete)
        self._found_again |= found.sure >= 0
        doubtful = self._found_again or (self._told is None and len(steps.number))
        if doubtful and found.sure < end.launches and not final:
            sooner = self._end(steps, launches, own, settled, now_ns, waits, found.sure)
            waiting = int(((steps.end_ns > self._host_end) & (steps.end_ns <= end.host_ns)).sum())
            if sooner is not None:
                end = sooner
                found, chosen, dangling = self._derived(kernels, copies, markers, payloads, own, end, complete)
            elif waiting < MOST_WAITING and now_ns - (self._host_end or self._began) < PATIENCE_NS:
                return
        self._publish(found, dangling, end, now_ns)
        behind = lag(own, found.collectives, end)
        fresh = own["start_ns"][self._again : max(end.launches - behind, 0)]
        self.counts["unattributed_collectives"] += int((~np.isin(fresh, found.collectives["start_ns"])).sum())
        if found.told and not final:
            self._told = replace(found.told, correlation=since(found.told.correlation, -self._turn))

        keep = ~chosen | (ends(kernels) > end.kept_gpu_ns)
        first = min(max(end.kept_launches - behind, 0), own.rows)  # so that the last kernels stand where their calls do
        keep[own["row"][:first]] = False
        keep[own["row"][first:]] = True
        self._again = min(end.launches, own.rows) - first
        if first:
            self._turn = int(own["correlation"][first - 1])
        self._kernels = some(kernels.take(keep))
        self._copies = some(copies.take(ends(copies) > end.kept_gpu_ns))
        late = (markers["time_ns"] >= end.kept_ns) | np.isin(markers["id"], dangling)
        self._payloads = some(payloads.take(np.isin(payloads["id"], markers["id"][late])))
        self._names, self._domains, kept = Words(), Words(), markers.take(late)
        self._markers = some(self._named(kept))
        self._host_end, self._gpu_end = end.host_ns, end.gpu_ns

    def _derived(
        self, kernels: Table, copies: Table, markers: Table, payloads: Table, own: Table, end: End, complete: bool
    ) -> tuple[Derived, Array, Array]:
        """(a stretch, which kernels are in it, ids of ranges that are open at its end). `complete`: see Told."""
        inside, dangling = closed(markers, end.host_ns)
        chosen = before_end(kernels, own, end)
        activity = Activity(
            kernels=turned(kernels.take(chosen), self._turn),
            copies=copies.take(copies["start_ns"] < end.gpu_ns),
            markers=inside,
            payloads=payloads,
        )
        none = np.empty(0, np.int64)
        before = self._told or Told(none, none)
        told = Told(
            since(before.correlation, self._turn).astype(np.int64),
            before.call_ns,
            self._told is None,
            complete,
            complete or not (self._found_again or self._lost),
        )
        return derive(activity, self._pattern, told=told), chosen, dangling

    def _end(
        self, steps: Steps, launches: Calls, own: Table, settled: int, now_ns: int, waits: bool | None, most: int
    ) -> End | None:
        """The latest place where a stretch can end. `waits`: steps will come; None = nothing will come. `most`: kernels
        that may belong to it."""
        here = certain(own, settled)
        ran = np.concatenate([[0], np.maximum.accumulate(ends(own))])
        before, behind = (np.searchsorted(launches.start_ns, at) for at in (steps.start_ns, steps.end_ns))
        gpu = np.maximum(ran[np.minimum(behind, own.rows)], np.where(behind > before, 0, steps.end_ns))
        ready = (behind <= here) & (steps.end_ns > self._host_end) & ((gpu <= settled) | (now_ns - gpu > 2 * SETTLE_NS))
        ready &= behind <= most
        late = waits is None or now_ns - (self._host_end or self._began) > PATIENCE_NS
        if ready.any() and (self._told is not None or late or ready.sum() >= KEPT_STEPS):
            last = int(np.flatnonzero(ready)[-1])
            first = max(last - KEPT_STEPS + 1, 0)
            kept_gpu = int(gpu[last - 1]) if last else self._gpu_end
            kept = (int(steps.start_ns[first]), int(before[first]), kept_gpu)
            its = (int(steps.number[last]), int(before[last]))
            return End(int(steps.end_ns[last]), int(behind[last]), int(gpu[last]), *kept, *its)
        if (waits and not late) or most < _FAR:
            return None
        host = now_ns if waits is None else now_ns - 2 * SETTLE_NS
        if here < len(launches.start_ns) and waits is not None:
            host = min(host, int(launches.start_ns[here]))
        if waits is not None and host - self._host_end < SETTLE_NS:
            return None
        number = int(np.searchsorted(launches.start_ns, host))
        gpu_ns = max(int(ran[min(number, own.rows)]), host)
        return End(host, number, gpu_ns, host, number, gpu_ns)

    def _publish(self, found: Derived, unfinished: Array, end: End, now_ns: int) -> None:
        """Send what is new in a stretch."""
        steps = found.steps
        known = self._within(steps)
        fresh = np.flatnonzero(steps["start_ns"] >= self._host_end)
        numbers = steps["step"] + self._offset
        if len(fresh) and int(numbers[fresh[0]]) <= self._step:  # numbered from the start again, or the same twice
            self._offset += self._step + 1 - int(numbers[fresh[0]])
        seen = self._step
        if len(fresh):
            self._step = int(steps["step"][fresh[-1]]) + self._offset
        new = self._numbered(steps.take(fresh[known[fresh]]))
        mark = min(end.host_ns, end.gpu_ns)
        if new.rows:
            self._outbox.put(Topic.STEP, new, mark, now_ns, complete_step=self._step, steps_from=found.steps_from)
        half = np.isin(found.collectives["step"], steps["step"][~known])
        numbered = np.where(half, -1, found.collectives["step"])
        rows = self._numbered(Table({**found.collectives.columns, "step": numbered}, found.collectives.words))
        inside = rows["step"] >= 0
        ours = np.isin(found.collectives["step"], steps["step"][fresh])
        late = rows["start_ns"] >= self._host_end - CLOCK_SLACK_NS  # a number may come again
        rows = rows.take(np.where(inside, (rows["step"] > seen) & ours & late, rows["start_ns"] >= self._gpu_end))
        for communicator in np.unique(rows["communicator"]).tolist():
            own = self._ordered(communicator, rows.take(rows["communicator"] == communicator))
            self._outbox.put(Topic.COLLECTIVE, own, mark, now_ns, communicator=communicator, complete_step=self._step)
        ranges = self._numbered(found.ranges)
        recent = (ends(ranges) > self._host_end) & ~np.isin(ranges["id"], unfinished)
        if recent.any():
            self._outbox.put(Topic.RANGE, ranges.take(recent), mark, now_ns)
        self.counts["skipped_steps"] += int(new["skipped"].sum())

    def _within(self, steps: Table) -> Array:
        """Which steps were recorded from start to end: bool."""
        if not self._recorded:
            return np.ones(steps.rows, bool)
        windows = np.array(self._recorded)
        at = np.maximum(np.searchsorted(windows[:, 0], steps["start_ns"], side="right") - 1, 0)
        end = steps["start_ns"] + steps["duration_ns"]
        inside: Array = (windows[at, 0] <= steps["start_ns"]) & (end <= windows[at, 1])
        return inside

    def _ordered(self, communicator: int, rows: Table) -> Table:
        """Ordinals of collectives outside steps count on from stretch to stretch."""
        outside = rows["step"] < 0
        ordinal = rows["ordinal"] + np.where(outside, self._ordinals[communicator], 0).astype(np.int32)
        self._ordinals[communicator] += int(outside.sum())
        return Table({**rows.columns, "ordinal": ordinal}, rows.words)

    def _numbered(self, table: Table) -> Table:
        step = np.where(table["step"] >= 0, table["step"] + self._offset, -1)
        return Table({**table.columns, "step": step}, table.words)

    def give_up(self) -> None:
        """Too much is waiting: forget it. Its steps are missing downstream, which shows there as skipped."""
        self.counts["given_up_kernels"] += sum(t.rows for t in self._kernels)
        for pending in (self._kernels, self._copies, self._markers, self._payloads):
            pending.clear()

    def _named(self, markers: Table) -> Table:
        """Markers with names and domains of our own dictionaries, which hold what is still waiting and no more."""
        columns = {
            **markers.columns,
            "name": self._names.take(markers["name"], markers.words["names"]),
            "domain": self._domains.take(markers["domain"], markers.words["domains"]),
        }
        return Table(columns, {"names": self._names.words, "domains": self._domains.words})
