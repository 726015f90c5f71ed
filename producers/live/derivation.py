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

import numpy as np

from drumline.producers.activity.activity import Activity, end_ns
from drumline.producers.activity.table import Table
from drumline.producers.batches.live import BatchWriter
from drumline.producers.derive.nccl.kernel_matching import CLOCK_SLACK_NS
from drumline.producers.derive.nccl.launch_records import LaunchRecordRequest
from drumline.producers.derive.nvtx import ranges as nested_ranges
from drumline.producers.derive.rows import Derived, derive
from drumline.producers.derive.steps.steps import OPTIMIZER_PATTERN, STEP_PATTERN, Steps, marked_steps
from drumline.producers.ipc.buffer_pool import HELD_NS
from drumline.producers.live.emitter import Telling
from drumline.producers.live.match_history import Pairs
from drumline.producers.live.pending import NOTHING, Waiting
from drumline.producers.live.segment import before_end, closed, endless, host_launches, lag
from drumline.producers.live.segment_stretch_end import KEPT_STEPS, SETTLE_NS, End, Ends
from drumline.schemas.columns import Array

#: A step that is open for longer does not hold back what lies before its end.
PATIENCE_NS = 60_000_000_000
#: Steps that wait for one to be found again behind them (resync.py), at most. After a loss they are then told as
#: skipped; where none is known they are believed, and so do not wait long.
MOST_WAITING = 2 * KEPT_STEPS
FEW_WAITING = 2
#: Kernels kept for a stretch that does not end; beyond it the stretch is given up. Half of them, and nothing waits for
#: more than its own end.
MOST_KERNELS = 1_000_000
_NONE = np.empty(0, np.int64)


class Live:
    """One process. `counts`: what could not be told so far. `here_ns`: what the host did before has come, kernels that
    it launched too; None = everything that has ended."""

    def __init__(self, writer: BatchWriter, pattern: str = STEP_PATTERN) -> None:
        self.counts: Counter[str] = Counter()
        self._writer, self._pattern, self._waiting = writer, pattern, Waiting()
        self.here_ns: int | None = None
        self._settled = self._unheard_ns = 0
        self._pairs = Pairs()
        self._lost_ns = self._over_ns = 0
        self._found_again = self._communicates = False
        self._asking = LaunchRecordRequest()
        self._telling = Telling(writer)

    def recording(self, on: bool, time_ns: int) -> None:
        """Recording was switched on or off. Steps that the API marks go on without it, but nothing is known of them."""
        self._telling.recording(on, time_ns)

    def lost(self, now_ns: int, made_ns: tuple[int, int] | None = None) -> None:
        """Records were dropped: counts of kernels say nothing until steps were found again, or recording was switched
        off and on. `made_ns`: from when to when the host made what CUPTI has no record of, where that is known."""
        self._lost_ns = now_ns
        if made_ns:
            self._telling.lost(*made_ns)

    def marks_lost(self, now_ns: int) -> None:
        """Steps and scopes of the API were lost: what is open may have ended."""
        self._over_ns = now_ns

    def asks(self, now_ns: int) -> bool:
        """Whether it should be recorded when the host launches what."""
        wanted = self._asking.wanted(now_ns, self._lost_ns > 0 and self._communicates)
        if self._asking.times:
            self.counts["launches_asked"] = self._asking.times
        return wanted

    @property
    def blind_ns(self) -> int:
        """Since when no step that was recorded has had a kernel; 0 = the last one had."""
        return self._telling.blind_ns or self._unheard_ns

    def add(self, kernels: Table, copies: Table, markers: Table, payloads: Table, launched: Table = NOTHING) -> None:
        """What came with one buffer; columns as in Activity, of `launched` as in Decoded."""
        late = int((markers["time_ns"] < self._telling.host_ns).sum()) if markers.rows else 0
        if late:  # what they belong to was told without them
            self.counts["late_markers"] += late
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
        if self._telling.blind_ns <= self._waiting.newest:
            self._telling.blind_ns = 0  # a kernel has come since, of a step that is still to be told, or of none
        if final:
            self._waiting.clear()
            self._pairs.forget()
            self._found_again, self._lost_ns, self._unheard_ns = False, 0, 0
        elif len(self._waiting) > MOST_KERNELS:
            self.give_up(now_ns)
        self._writer.heartbeat(now_ns, self.watermark(now_ns), self._telling.step)

    def watermark(self, now_ns: int) -> int:
        """No row that is still to come starts before this, as far as one can know: a kernel that runs is not here."""
        here = min(now_ns - 2 * SETTLE_NS, self._awaited(now_ns))
        return min(here, self._telling.host_ns or here)

    def give_up(self, now_ns: int) -> None:
        """Too much is waiting: forget it. Its steps are missing downstream, which shows there as skipped. Calls went
        whose kernels are still to come, so it is as after a loss."""
        self.counts["given_up_kernels"] += len(self._waiting)
        self._waiting.clear()
        self._pairs.forget(calls_went=True)
        self.lost(now_ns)

    def _stretch(self, settled: int, now_ns: int, final: bool) -> None:
        kernels, copies, markers, payloads = self._waiting.tables()
        ranges, _ = nested_ranges(markers)
        steps, source = marked_steps(ranges, self._pattern)
        launches = host_launches(ranges, payloads, steps)
        patterns = (self._pattern, OPTIMIZER_PATTERN)
        named = any(re.search(pattern, name) for name in self._waiting.names for pattern in patterns)
        own = self._pairs.launches(kernels, self._waiting.launched)
        self._communicates = len(launches.start_ns) > 0
        waits = None if final else self._telling.step >= 0 or named
        possible = Ends(
            steps=steps,
            launches=launches,
            own=own,
            settled=settled,
            now_ns=now_ns,
            here_ns=now_ns if final else self._awaited(now_ns),
            told_ns=self._telling.host_ns,
            told_gpu_ns=self._telling.gpu_ns,
            begun=self._pairs.begun,
            waits=waits,
            late=self._late(now_ns),
        )
        end = possible.latest()
        self._unheard_ns = 0
        if end is None:  # where NCCL's kernels do not come, it never ends
            ended = (steps.start_ns > self._waiting.newest) & (steps.end_ns <= self._here(now_ns) - SETTLE_NS)
            self._unheard_ns = int(steps.start_ns[ended][0]) if ended.any() else 0
            return
        # A kernel behind the stretch that ran before the host was there is one too many in it: the first ones belong
        # to calls that were not recorded (recording began between a call and its kernel).
        surplus = int((own["launched_ns"][end.launches :] < end.host_ns - CLOCK_SLACK_NS).sum())
        if surplus:
            self.counts["kernels_without_call"] += surplus
            kernels = kernels.take(np.setdiff1d(np.arange(kernels.rows), own["row"][:surplus]))
            self._waiting.keep_kernels(kernels)
            self._pairs.again = max(0, self._pairs.again - surplus)
            return  # the next turn takes the stretch
        gone = _NONE
        if end.step >= 0:
            past = max(self._over_ns, min(self._lost_ns, now_ns - PATIENCE_NS))
            gone = endless(markers, end.host_ns, self._pattern, source, past)
            markers = markers.take(~np.isin(markers["id"], gone))
        counted = not self._lost_ns
        found, chosen, dangling = self._derived(kernels, copies, markers, payloads, own, end, counted)
        self._found_again |= found.confidence.kernels >= 0
        if not found.confidence.agree and counted and not final:
            self.lost(now_ns)  # CUPTI did not say so
            return  # the next turn takes the stretch
        if found.confidence.kernels < end.launches and self._findable(steps) and not final:
            sooner = possible.latest(found.confidence.kernels)
            if sooner is not None:
                end = sooner
                found, chosen, dangling = self._derived(kernels, copies, markers, payloads, own, end, counted)
            elif self._may_wait(steps, end, now_ns):
                return
        if len(gone):
            self.counts["endless_ranges"] += len(gone)
        self._over_ns = 0
        self.counts["skipped_steps"] += self._telling.tell(found, dangling, end, now_ns, self._here(now_ns))
        found_lag = lag(own, found.collectives, end)
        behind = found_lag or 0
        fresh = own["start_ns"][self._pairs.again : max(end.launches - behind, 0)]
        self.counts["unattributed_collectives"] += int((~np.isin(fresh, found.collectives["start_ns"])).sum())
        if found.matches and not final:
            self._pairs.learn(found.matches)
        paired = found.confidence.kernels >= end.launches and (found_lag is not None or end.step < 0)
        if paired and end.kept_ns > self._lost_ns:
            # All that is kept came later, and stands where its calls do.
            self._lost_ns, self._over_ns = 0, self._lost_ns

        keep = ~chosen | (end_ns(kernels) > end.kept_gpu_ns)
        first = min(max(end.kept_launches - behind, 0), own.rows)  # so that the last kernels stand where their calls do
        keep[own["row"][:first]] = False
        keep[own["row"][first:]] = True
        self._pairs.keep(own, first, end.launches)
        late = (markers["time_ns"] >= end.kept_ns) | np.isin(markers["id"], dangling)
        known = np.isin(payloads["id"], markers["id"][late])
        later = end_ns(copies) > end.kept_gpu_ns
        self._waiting.keep(kernels.take(keep), copies.take(later), markers.take(late), payloads.take(known))
        self._waiting.forget_launches(end.kept_ns)

    def _derived(
        self, kernels: Table, copies: Table, markers: Table, payloads: Table, own: Table, end: End, counted: bool
    ) -> tuple[Derived, Array, Array]:
        """(a stretch, which kernels are in it, ids of ranges that are open at its end). `counted`: see Told."""
        inside, dangling = closed(markers, end.host_ns)
        chosen = before_end(kernels, own, end)
        activity = Activity(
            kernels=self._pairs.turned(kernels.take(chosen)),
            copies=copies.take(copies["start_ns"] < end.gpu_ns),
            markers=inside,
            payloads=payloads,
        )
        told = self._pairs.told(self._waiting.launched, counted)
        return derive(activity, self._pattern, known=told), chosen, dangling

    def _here(self, now_ns: int) -> int:
        return now_ns if self.here_ns is None else min(self.here_ns, now_ns)

    def _awaited(self, now_ns: int) -> int:
        """What the host did before is here, or is not waited for any more."""
        return max(self._here(now_ns), now_ns - HELD_NS)

    def _findable(self, steps: Steps) -> bool:
        """Steps are found again by distances in this job, as far as one knows."""
        return self._found_again or (not self._pairs.begun and len(steps.number) > 0)

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
