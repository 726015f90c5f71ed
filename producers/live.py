"""A live process's activity, as it comes, into the rows that are published: derive() over stretches that are complete.

Kernels and copies are published at once. Steps, collectives and ranges need more: the k-th NCCL kernel belongs to the
k-th NCCL call, a step's budget ends with its last collective, and the GPU is behind the host. So a stretch ends with a
step all of whose collectives have run, and what lies behind it is kept. Of its last steps calls and NCCL kernels
are kept too, with the pairs that they made, and derived again with the next one: the next step's budget begins where
their collectives end, and where a kernel was lost only a row of steps tells which kernels belong to which calls.

A lost kernel looks like a late one. So when CUPTI has dropped records, or counts and distances disagree, a stretch ends
with a step that was found again by distances, until all that is kept came after the loss. Where that takes longer,
launches are asked for (launched.py). Without steps, a stretch ends where the GPU has caught up with the host.

Pure: no clock, no I/O. Times are ns since the epoch.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np

from drumline.producers.activity import Activity, ends
from drumline.producers.calls import Calls
from drumline.producers.collectives import CLOCK_SLACK_NS
from drumline.producers.derive import Derived, derive
from drumline.producers.launched import Asking
from drumline.producers.nccl_launches import Told
from drumline.producers.outbox import Outbox
from drumline.producers.ranges import ranges as nested_ranges
from drumline.producers.steps import OPTIMIZER_PATTERN, STEP_PATTERN, Steps, marked_steps
from drumline.producers.stretch import (
    End,
    before_end,
    certain,
    closed,
    communication,
    endless,
    host_launches,
    lag,
    launched_at,
    since,
    turned,
)
from drumline.producers.table import Table
from drumline.producers.telling import Telling
from drumline.producers.waiting import NOTHING, Waiting
from drumline.schemas.columns import Array

#: Kernels reach us this much later than they end, at most, in a process that is well.
SETTLE_NS = 1_000_000_000
#: A step that is open for longer does not hold back what lies before its end.
PATIENCE_NS = 60_000_000_000
_FAR = np.iinfo(np.int64).max
#: Steps of which calls and NCCL kernels are kept: enough to find whole steps again (usual.py, resync.py) and more.
KEPT_STEPS = 8
#: Steps that wait for one to be found again behind them (resync.py), at most. After a loss they are then told as
#: skipped; where none is known they are believed, and so do not wait long.
MOST_WAITING = 2 * KEPT_STEPS
FEW_WAITING = 2
#: Kernels kept for a stretch that does not end; beyond it the stretch is given up. Half of them, and nothing waits for
#: more than its own end.
MOST_KERNELS = 1_000_000
_NONE = np.empty(0, np.int64)


class Live:
    """One process. `counts`: what could not be told so far. `settled_ns`: everything that ended before is here."""

    def __init__(self, outbox: Outbox, pattern: str = STEP_PATTERN) -> None:
        self.counts: Counter[str] = Counter()
        self._outbox, self._pattern, self._waiting = outbox, pattern, Waiting()
        self._settled = self._turn = self._again = 0
        self._told: Told | None = None
        self._lost_ns = self._over_ns = 0
        self._found_again = self._communicates = False
        self._asking = Asking()
        self._telling = Telling(outbox)

    def recording(self, on: bool, time_ns: int) -> None:
        """Recording was switched on or off. Steps that the API marks go on without it, but nothing is known of them."""
        self._telling.recording(on, time_ns)

    def lost(self, now_ns: int) -> None:
        """Records were dropped: counts of kernels say nothing until steps were found again, or recording was switched
        off and on."""
        self._lost_ns = now_ns

    def marks_lost(self, now_ns: int) -> None:
        """Steps and scopes of the API were lost: what is open may have ended."""
        self._over_ns = now_ns

    def asks(self, now_ns: int) -> bool:
        """Whether it should be recorded when the host launches what."""
        wanted = self._asking.wanted(now_ns, self._lost_ns > 0 and self._communicates)
        if self._asking.times:
            self.counts["launches_asked"] = self._asking.times
        return wanted

    def add(self, kernels: Table, copies: Table, markers: Table, payloads: Table, launched: Table = NOTHING) -> None:
        """What came with one buffer; columns as in Activity, of `launched` as in Decoded."""
        self._waiting.add(kernels, copies, markers, payloads, launched)

    def advance(self, now_ns: int, final: bool = False) -> None:
        """Publish what is complete. `final`: nothing follows (the process ended, or recording was switched off)."""
        settled, self._settled = self._settled, self._waiting.newest
        if now_ns - self._settled > SETTLE_NS:
            settled = self._settled  # quiet for so long: all of it is here
        if final:
            settled = now_ns
        if self._waiting.marked:
            self._stretch(settled, now_ns, final)
            if final and self._waiting.marked:
                self._stretch(settled, now_ns, final)  # what lies behind the last step
        else:  # nobody asks for steps, collectives or ranges
            self._waiting.clear_gpu()
        if final:
            self._waiting.clear()
            self._told, self._again = None, 0
            self._found_again, self._lost_ns = False, 0
        elif len(self._waiting) > MOST_KERNELS:
            self.give_up(now_ns)
        self._outbox.beat(now_ns, self.watermark(now_ns), self._telling.step)

    def watermark(self, now_ns: int) -> int:
        """No row that is still to come starts before this, as far as one can know: a kernel that runs is not here."""
        return min(now_ns - 2 * SETTLE_NS, self._telling.host_ns or now_ns - 2 * SETTLE_NS)

    def give_up(self, now_ns: int) -> None:
        """Too much is waiting: forget it. Its steps are missing downstream, which shows there as skipped. Calls went
        whose kernels are still to come, so it is as after a loss."""
        self.counts["given_up_kernels"] += len(self._waiting)
        self._waiting.clear()
        self._told, self._again = Told(_NONE, _NONE), 0
        self.lost(now_ns)

    def _stretch(self, settled: int, now_ns: int, final: bool) -> None:
        kernels, copies, markers, payloads = self._waiting.tables()
        ranges, _ = nested_ranges(markers)
        steps, source = marked_steps(ranges, self._pattern)
        launches = host_launches(ranges, payloads, steps)
        patterns = (self._pattern, OPTIMIZER_PATTERN)
        named = any(re.search(pattern, name) for name in self._waiting.names for pattern in patterns)
        own = launched_at(communication(kernels, self._turn), self._waiting.launched)
        self._communicates = len(launches.start_ns) > 0
        waits = None if final else self._telling.step >= 0 or named
        end = self._end(steps, launches, own, settled, now_ns, waits, _FAR)
        if end is None:
            return
        # A kernel behind the stretch that ran before the host was there is one too many in it: the first ones belong
        # to calls that were not recorded (recording began between a call and its kernel).
        surplus = int((own["launched_ns"][end.launches :] < end.host_ns - CLOCK_SLACK_NS).sum())
        if surplus:
            self.counts["kernels_without_call"] += surplus
            kernels = kernels.take(np.setdiff1d(np.arange(kernels.rows), own["row"][:surplus]))
            self._waiting.keep_kernels(kernels)
            self._again = max(0, self._again - surplus)
            return  # the next turn takes the stretch
        gone = _NONE
        if end.step >= 0:
            past = max(self._over_ns, min(self._lost_ns, now_ns - PATIENCE_NS))
            gone = endless(markers, end.host_ns, self._pattern, source, past)
            markers = markers.take(~np.isin(markers["id"], gone))
        counted = not self._lost_ns
        found, chosen, dangling = self._derived(kernels, copies, markers, payloads, own, end, counted)
        self._found_again |= found.sure.launches >= 0
        if not found.sure.agree and counted and not final:
            self.lost(now_ns)  # CUPTI did not say so
            return  # the next turn takes the stretch
        if found.sure.launches < end.launches and self._findable(steps) and not final:
            sooner = self._end(steps, launches, own, settled, now_ns, waits, found.sure.launches)
            if sooner is not None:
                end = sooner
                found, chosen, dangling = self._derived(kernels, copies, markers, payloads, own, end, counted)
            elif self._may_wait(steps, end, now_ns):
                return
        if len(gone):
            self.counts["endless_ranges"] += len(gone)
        self._over_ns = 0
        self.counts["skipped_steps"] += self._telling.tell(found, dangling, end, now_ns)
        found_lag = lag(own, found.collectives, end)
        behind = found_lag or 0
        fresh = own["start_ns"][self._again : max(end.launches - behind, 0)]
        self.counts["unattributed_collectives"] += int((~np.isin(fresh, found.collectives["start_ns"])).sum())
        if found.told and not final:
            self._told = replace(found.told, correlation=since(found.told.correlation, -self._turn))
        paired = found.sure.launches >= end.launches and (found_lag is not None or end.step < 0)
        if paired and end.kept_ns > self._lost_ns:
            # All that is kept came later, and stands where its calls do.
            self._lost_ns, self._over_ns = 0, self._lost_ns

        keep = ~chosen | (ends(kernels) > end.kept_gpu_ns)
        first = min(max(end.kept_launches - behind, 0), own.rows)  # so that the last kernels stand where their calls do
        keep[own["row"][:first]] = False
        keep[own["row"][first:]] = True
        self._again = min(end.launches, own.rows) - first
        if first:
            self._turn = int(own["correlation"][first - 1])
        late = (markers["time_ns"] >= end.kept_ns) | np.isin(markers["id"], dangling)
        known = np.isin(payloads["id"], markers["id"][late])
        later = ends(copies) > end.kept_gpu_ns
        self._waiting.keep(kernels.take(keep), copies.take(later), markers.take(late), payloads.take(known))
        self._waiting.forget_launches(end.kept_ns)

    def _derived(
        self, kernels: Table, copies: Table, markers: Table, payloads: Table, own: Table, end: End, counted: bool
    ) -> tuple[Derived, Array, Array]:
        """(a stretch, which kernels are in it, ids of ranges that are open at its end). `counted`: see Told."""
        inside, dangling = closed(markers, end.host_ns)
        chosen = before_end(kernels, own, end)
        activity = Activity(
            kernels=turned(kernels.take(chosen), self._turn),
            copies=copies.take(copies["start_ns"] < end.gpu_ns),
            markers=inside,
            payloads=payloads,
        )
        before = self._told or Told(_NONE, _NONE)
        correlation = since(before.correlation, self._turn).astype(np.int64)
        launched = self._waiting.launched
        which, first = np.unique(since(launched["correlation"], self._turn).astype(np.int64), return_index=True)
        told = Told(correlation, before.call_ns, self._told is None, counted, which, launched["start_ns"][first])
        return derive(activity, self._pattern, told=told), chosen, dangling

    def _findable(self, steps: Steps) -> bool:
        """Steps are found again by distances in this job, as far as one knows."""
        return self._found_again or (self._told is None and len(steps.number) > 0)

    def _may_wait(self, steps: Steps, end: End, now_ns: int) -> bool:
        """May a stretch wait for a step behind it that is found again?"""
        if self._late(now_ns):
            return False
        waiting = int(((steps.end_ns > self._telling.host_ns) & (steps.end_ns <= end.host_ns)).sum())
        if self._lost_ns:
            return waiting < MOST_WAITING
        return waiting < FEW_WAITING and now_ns - end.gpu_ns < 2 * SETTLE_NS

    def _late(self, now_ns: int) -> bool:
        waited = now_ns - (self._telling.host_ns or self._waiting.began)
        return waited > PATIENCE_NS or len(self._waiting) > MOST_KERNELS // 2

    def _end(
        self, steps: Steps, launches: Calls, own: Table, settled: int, now_ns: int, waits: bool | None, most: int
    ) -> End | None:
        """The latest place where a stretch can end. `waits`: steps will come; None = nothing will come. `most`: kernels
        that may belong to it."""
        here, told = certain(own, settled), self._telling
        ran = np.concatenate([[0], np.maximum.accumulate(ends(own))])
        before, behind = (np.searchsorted(launches.start_ns, at) for at in (steps.start_ns, steps.end_ns))
        gpu = np.maximum(ran[np.minimum(behind, own.rows)], np.where(behind > before, 0, steps.end_ns))
        ready = (behind <= here) & (steps.end_ns > told.host_ns) & ((gpu <= settled) | (now_ns - gpu > 2 * SETTLE_NS))
        ready &= behind <= most
        late = waits is None or self._late(now_ns)
        if ready.any() and (self._told is not None or late or ready.sum() >= KEPT_STEPS):
            last = int(np.flatnonzero(ready)[-1])
            first = max(last - KEPT_STEPS + 1, 0)
            kept_gpu = int(gpu[last - 1]) if last else told.gpu_ns
            kept = (int(steps.start_ns[first]), int(before[first]), kept_gpu)
            its = (int(steps.number[last]), int(before[last]))
            return End(int(steps.end_ns[last]), int(behind[last]), int(gpu[last]), *kept, *its)
        if (waits and not late) or most < _FAR:
            return None
        host = now_ns if waits is None else now_ns - 2 * SETTLE_NS
        if here < len(launches.start_ns) and waits is not None:
            host = min(host, int(launches.start_ns[here]))
        across = launches.start_ns[(launches.start_ns < host) & (launches.end_ns > host)]
        host = min([host, *across.tolist()])  # what is open at the end is kept, so its kernel has to be
        if waits is not None and host - told.host_ns < SETTLE_NS:
            return None
        number = int(np.searchsorted(launches.start_ns, host))
        gpu_ns = max(int(ran[min(number, own.rows)]), host)
        return End(host, number, gpu_ns, host, number, gpu_ns)
