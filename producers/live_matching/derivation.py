"""Incremental derivation: `derive` over segments of a live process's activity that are complete.

Kernels and copies are published at once. Steps, collectives and ranges need more: the k-th NCCL kernel belongs to the
k-th NCCL call, a step's budget ends with its last collective, and the GPU is behind the host. So a segment ends with a
step all of whose collectives have run, and what follows stays pending. Calls and NCCL kernels of its last steps are
kept too, with their matches, and derived again with the next segment: the next step's budget begins where their
collectives end, and after a lost kernel only several steps in a row identify which kernels belong to which calls.

A lost kernel looks like a late one. So when CUPTI has dropped records, or counts and distances disagree, segments end
with a step that was found again by distances, until all pending activity is newer than the loss. Where that takes
longer, launches are recorded (`launch_records`). Without steps, a segment ends where the GPU has caught up with the
host.

Times are ns since the epoch.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.activity import Activity, end_ns
from drumline.producers.activity.table import Table
from drumline.producers.batching.live import BatchWriter, FeedProgress
from drumline.producers.derive.nccl.kernel_matching import CLOCK_SLACK_NS
from drumline.producers.derive.nccl.launch_records import LaunchRecordRequest
from drumline.producers.derive.nvtx import ranges as nested_ranges
from drumline.producers.derive.rows import Derived, derive
from drumline.producers.derive.steps.steps import OPTIMIZER_PATTERN, STEP_PATTERN, Steps, marked_steps
from drumline.producers.ipc.timing import HELD_NS
from drumline.producers.live_matching.emitter import RowEmitter
from drumline.producers.live_matching.match_history import MatchHistory
from drumline.producers.live_matching.pending import NOTHING, PendingActivity
from drumline.producers.live_matching.segment import (
    KEPT_STEPS,
    SETTLE_NS,
    SegmentEnd,
    SegmentEndFinder,
    closed,
    endless_ranges,
    host_calls,
    in_segment,
    kernels_behind,
)
from drumline.schemas.columns import Array

#: A step that is open for longer does not hold back what lies before its end.
TIMEOUT_NS = 60_000_000_000
#: Steps that wait for a later one to be found again (resync), at most. After a loss they are then emitted as skipped;
#: where no loss is known they are believed, and so wait shorter.
MOST_WAITING = 2 * KEPT_STEPS
FEW_WAITING = 2
#: Pending kernels beyond which all are given up. From half of them on, no segment waits for anything but its end.
MOST_KERNELS = 1_000_000
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Segment:
    """Pending activity and the segment's end in it; `endless`: ids of ranges whose end was lost."""

    kernels: Table
    copies: Table
    markers: Table
    payloads: Table
    nccl_kernels: Table
    steps: Steps
    ends: SegmentEndFinder
    end: SegmentEnd
    endless: Array


@dataclass(frozen=True)
class _DerivedSegment:
    """Rows of a segment.

    `inside`: which kernels belong to it. `open_range_ids`: ranges that are open at its end. `behind`: kernels lost at
    its end, see kernels_behind().
    """

    rows: Derived
    end: SegmentEnd
    inside: Array
    open_range_ids: Array
    behind: int | None


class IncrementalDerivation:
    """Derives rows from the activity of one live process as it arrives, and passes them to a batch writer.

    The decoder's output makes one for each process. Runs in the decoder's thread, without I/O or clock.

    Attributes:
        counts: rows that could not be derived or read, by reason.
        complete_until_ns: activity of the host before this has arrived, with the kernels that it launched; None = all
            that has ended.
        has_ring: the process's ring has collectives and steps; then ranges alone are emitted, and no call is matched.
    """

    def __init__(self, writer: BatchWriter, pattern: str = STEP_PATTERN) -> None:
        self.counts: Counter[str] = Counter()
        self._writer, self._pattern, self._pending = writer, pattern, PendingActivity()
        self.complete_until_ns: int | None = None
        self.has_ring = False
        self._settled_ns = self._no_segment_since_ns = 0
        self._matches = MatchHistory()
        self._lost_ns = self._ranges_lost_ns = 0
        self._found_again = self._communicates = False
        self._launch_records = LaunchRecordRequest()
        self._emitter = RowEmitter(writer)

    def recording(self, on: bool, time_ns: int) -> None:
        """Note that recording was switched on or off; steps of the API that continue without it are not emitted."""
        self._emitter.recording(on, time_ns)

    def lost(self, now_ns: int, made_ns: tuple[int, int] | None = None) -> None:
        """Note that records were dropped.

        Counts of kernels prove nothing until steps were found again, or recording was switched off and on. `made_ns`:
        first and last time of the host's activity that has no record, where that is known.
        """
        self._lost_ns = now_ns
        if made_ns:
            self._emitter.lost(*made_ns)

    def marks_lost(self, now_ns: int) -> None:
        """Note that steps and scopes of the API were lost: ranges that are open may have ended."""
        self._ranges_lost_ns = now_ns

    def wants_launches(self, now_ns: int) -> bool:
        """Return whether launches on the host should be recorded."""
        wanted = self._launch_records.wanted(now_ns, self._lost_ns > 0 and self._communicates)
        if self._launch_records.times:
            self.counts["launches_requested"] = self._launch_records.times
        return wanted

    @property
    def no_kernels_since_ns(self) -> int:
        """Return the begin of the first of the latest recorded steps without a kernel; 0 = the last one had some."""
        return self._emitter.no_kernels_since_ns or self._no_segment_since_ns

    def add(self, kernels: Table, copies: Table, markers: Table, payloads: Table, launched: Table = NOTHING) -> None:
        """Append the activity of one buffer; columns as in Activity, of `launched` as in Decoded."""
        late = int((markers["time_ns"] < self._emitter.host_ns).sum()) if markers.rows else 0
        if late:  # their steps were emitted without them
            self.counts["late_markers"] += late
        self._pending.add(kernels, copies, markers, payloads, launched)

    def advance(self, now_ns: int, final: bool = False) -> None:
        """Emit what is complete. `final`: nothing follows (the process ended, or recording was switched off)."""
        settled_ns, self._settled_ns = self._settled_ns, self._pending.newest_kernel_ns
        if now_ns - self._settled_ns > SETTLE_NS:
            settled_ns = self._settled_ns  # no kernel for so long: all have arrived
        if final:
            settled_ns = now_ns
        if self._pending.has_markers:
            self._process_segment(settled_ns, now_ns, final)
            if final and self._pending.has_markers:
                self._process_segment(settled_ns, now_ns, final)  # what lies behind the last step
        else:  # without markers there are no steps, collectives or ranges
            self._pending.clear_gpu()
        if self._emitter.no_kernels_since_ns <= self._pending.newest_kernel_ns:
            self._emitter.no_kernels_since_ns = 0  # a kernel has come since
        if final:
            self._pending.clear()
            self._matches.forget()
            self._found_again, self._lost_ns, self._no_segment_since_ns = False, 0, 0
        elif len(self._pending) > MOST_KERNELS:
            self.give_up(now_ns)
        self._writer.heartbeat(FeedProgress(now_ns, self.watermark(now_ns), self._emitter.step))

    def watermark(self, now_ns: int) -> int:
        """Return the time before which no later row starts; kernels that still run have not arrived."""
        complete = min(now_ns - 2 * SETTLE_NS, self._waited_until_ns(now_ns))
        return min(complete, self._emitter.host_ns or complete)

    def give_up(self, now_ns: int) -> None:
        """Drop all pending activity as too much. Downstream its steps are missing, and so skipped.

        Kernels of dropped calls may still come, so this counts as a loss.
        """
        self.counts["given_up_kernels"] += len(self._pending)
        self._pending.clear()
        self._matches.forget(kernels_may_come=True)
        self.lost(now_ns)

    def _process_segment(self, settled_ns: int, now_ns: int, final: bool) -> None:
        """Derive and emit one segment, if one is complete."""
        segment = self._find_segment(settled_ns, now_ns, final)
        derived = self._derive_segment(segment, now_ns, final) if segment else None
        if segment and derived:
            self._emit(segment, derived, now_ns)
            self._retain(segment, derived, final)

    def _find_segment(self, settled_ns: int, now_ns: int, final: bool) -> _Segment | None:
        """Return the pending activity with the end of a segment; None if there is no end yet."""
        kernels, copies, markers, payloads = self._pending.tables()
        ranges, _ = nested_ranges(markers)
        steps, source = marked_steps(ranges, self._pattern)
        calls = host_calls(ranges, payloads, steps)
        matchable = kernels
        if self.has_ring:
            calls, matchable = calls.take(slice(0)), kernels.take(slice(0))
        nccl_kernels = self._matches.nccl_kernels(matchable, self._pending.launched)
        self._communicates = len(calls.start_ns) > 0
        ends = SegmentEndFinder(
            steps=steps,
            calls=calls,
            nccl_kernels=nccl_kernels,
            settled_ns=settled_ns,
            now_ns=now_ns,
            complete_until_ns=now_ns if final else self._waited_until_ns(now_ns),
            emitted_ns=self._emitter.host_ns,
            emitted_gpu_ns=self._emitter.gpu_ns,
            begun=self._matches.begun,
            expects_steps=None if final else self._emitter.step >= 0 or self._steps_are_named(),
            timed_out=self._timed_out(now_ns),
        )
        end = ends.latest()
        self._no_segment_since_ns = 0
        if end is None:  # where NCCL's kernels do not come, there never is one
            ended = (steps.start_ns > self._pending.newest_kernel_ns) & (
                steps.end_ns <= self._complete_until_ns(now_ns) - SETTLE_NS
            )
            self._no_segment_since_ns = int(steps.start_ns[ended][0]) if ended.any() else 0
            return None
        if self._drop_surplus(kernels, nccl_kernels, end):
            return None  # the next tick takes the segment
        endless = _NONE
        if end.step >= 0:
            before_ns = max(self._ranges_lost_ns, min(self._lost_ns, now_ns - TIMEOUT_NS))
            endless = endless_ranges(markers, end.host_ns, self._pattern, source, before_ns)
            markers = markers.take(~np.isin(markers["id"], endless))
        return _Segment(kernels, copies, markers, payloads, nccl_kernels, steps, ends, end, endless)

    def _drop_surplus(self, kernels: Table, nccl_kernels: Table, end: SegmentEnd) -> bool:
        """Drop kernels whose calls were not recorded, as recording began between the two; return whether any were.

        Each kernel behind the segment that ran before the host was there means one too many in it: the first ones.
        """
        surplus = int((nccl_kernels["launched_ns"][end.launches :] < end.host_ns - CLOCK_SLACK_NS).sum())
        if surplus:
            self.counts["kernels_without_call"] += surplus
            self._pending.keep_kernels(
                kernels.take(np.setdiff1d(np.arange(kernels.rows), nccl_kernels["row"][:surplus]))
            )
            self._matches.emitted = max(0, self._matches.emitted - surplus)
        return surplus > 0

    def _derive_segment(self, segment: _Segment, now_ns: int, final: bool) -> _DerivedSegment | None:
        """Return the segment's rows, for a sooner end where only that is certain; None if it has to wait."""
        counted = not self._lost_ns
        derived = self._derived(segment, segment.end, counted)
        confidence = derived.rows.confidence
        self._found_again |= confidence.kernels >= 0
        if not confidence.agree and counted and not final:
            self.lost(now_ns)  # a loss that CUPTI did not report
            return None  # the next tick takes the segment
        if confidence.kernels < segment.end.launches and self._findable(segment.steps) and not final:
            sooner = segment.ends.latest(confidence.kernels)
            if sooner is not None:
                return self._derived(segment, sooner, counted)
            if self._may_wait(segment.steps, segment.end, now_ns):
                return None
        return derived

    def _derived(self, segment: _Segment, end: SegmentEnd, counted: bool) -> _DerivedSegment:
        """Derive the rows up to an end. `counted`: see NcclKernels."""
        markers, open_range_ids = closed(segment.markers, end.host_ns)
        inside = in_segment(segment.kernels, segment.nccl_kernels, end)
        activity = Activity(
            kernels=self._matches.unwrap_ids(segment.kernels.take(inside)),
            copies=segment.copies.take(segment.copies["start_ns"] < end.gpu_ns),
            markers=markers,
            payloads=segment.payloads,
        )
        known = self._matches.known_matches(self._pending.launched, counted)
        rows = derive(activity, self._pattern, known=known, matched=not self.has_ring)
        behind = kernels_behind(segment.nccl_kernels, rows.collectives, end)
        return _DerivedSegment(rows, end, inside, open_range_ids, behind)

    def _emit(self, segment: _Segment, derived: _DerivedSegment, now_ns: int) -> None:
        """Emit the new rows of a segment and count what could not be derived."""
        rows, end = derived.rows, derived.end
        if len(segment.endless):
            self.counts["endless_ranges"] += len(segment.endless)
        self._ranges_lost_ns = 0
        self.counts["skipped_steps"] += self._emitter.emit(
            rows, derived.open_range_ids, end, now_ns, self._complete_until_ns(now_ns), ranges_only=self.has_ring
        )
        last = max(end.launches - (derived.behind or 0), 0)
        fresh = segment.nccl_kernels["start_ns"][self._matches.emitted : last]
        self.counts["unattributed_collectives"] += int((~np.isin(fresh, rows.collectives["start_ns"])).sum())

    def _retain(self, segment: _Segment, derived: _DerivedSegment, final: bool) -> None:
        """Keep the activity that the next segment needs, and the matches."""
        rows, end, nccl_kernels = derived.rows, derived.end, segment.nccl_kernels
        if rows.matches and not final:
            self._matches.learn(rows.matches)
        matched = rows.confidence.kernels >= end.launches and (derived.behind is not None or end.step < 0)
        if matched and end.kept_ns > self._lost_ns:
            # All that is kept is newer than the loss, and matched.
            self._lost_ns, self._ranges_lost_ns = 0, self._lost_ns
        keep = ~derived.inside | (end_ns(segment.kernels) > end.kept_gpu_ns)
        # The last kernels stay at the position of their calls.
        first = min(max(end.kept_launches - (derived.behind or 0), 0), nccl_kernels.rows)
        keep[nccl_kernels["row"][:first]] = False
        keep[nccl_kernels["row"][first:]] = True
        self._matches.keep(nccl_kernels, first, end.launches)
        markers = segment.markers.take(
            (segment.markers["time_ns"] >= end.kept_ns) | np.isin(segment.markers["id"], derived.open_range_ids)
        )
        self._pending.keep(
            segment.kernels.take(keep),
            segment.copies.take(end_ns(segment.copies) > end.kept_gpu_ns),
            markers,
            segment.payloads.take(np.isin(segment.payloads["id"], markers["id"])),
        )
        self._pending.forget_launches(end.kept_ns)

    def _complete_until_ns(self, now_ns: int) -> int:
        return now_ns if self.complete_until_ns is None else min(self.complete_until_ns, now_ns)

    def _waited_until_ns(self, now_ns: int) -> int:
        """Return the time before which the host's activity has arrived, or is not waited for any more."""
        return max(self._complete_until_ns(now_ns), now_ns - HELD_NS)

    def _steps_are_named(self) -> bool:
        """Return whether a pending marker has the name of a step."""
        patterns = (self._pattern, OPTIMIZER_PATTERN)
        return any(re.search(pattern, name) for name in self._pending.names for pattern in patterns)

    def _findable(self, steps: Steps) -> bool:
        """Return whether steps are found again by distances in this job, as far as is known."""
        return self._found_again or (not self._matches.begun and len(steps.number) > 0)

    def _may_wait(self, steps: Steps, end: SegmentEnd, now_ns: int) -> bool:
        """Return whether a segment may wait for a later step that is found again."""
        if self._timed_out(now_ns):
            return False
        waiting = int(((steps.end_ns > self._emitter.host_ns) & (steps.end_ns <= end.host_ns)).sum())
        if self._lost_ns:
            return waiting < MOST_WAITING
        return waiting < FEW_WAITING and now_ns - end.gpu_ns < 2 * SETTLE_NS

    def _timed_out(self, now_ns: int) -> bool:
        waited = now_ns - (self._emitter.host_ns or self._pending.first_marker_ns)
        return waited > TIMEOUT_NS or len(self._pending) > MOST_KERNELS // 2
