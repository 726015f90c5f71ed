"""Rows of one process from the records in its ring, as they come.

A step is published once a later mark is in the ring and all its operations are done; until then its records stay
there. So the state between two calls is small (RingState), and an agent that was killed reads the same records again.
Pure: time and records are arguments.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.batching.live import BatchWriter, FeedProgress
from drumline.producers.derive.light import Operations, light_rows
from drumline.producers.derive.steps.host_columns import host_columns
from drumline.producers.derive.steps.steps import INFERRED, Steps
from drumline.producers.rings.gpu_ticks import TickClock
from drumline.producers.rings.operations import REPORT_NS, as_operations, clock_offset, outcomes, taken
from drumline.producers.rings.progress import note_passed
from drumline.producers.rings.replays import replayed
from drumline.producers.rings.ring_file import COPY_ENGINES, MAX_COMMS, MOST_READ, Kind, written
from drumline.producers.rings.state import LastStep, OpenStep, RingState
from drumline.producers.rings.step_cuts import Cut, RingView, Segments, complete, marked_segments, watermark_ns
from drumline.producers.rings.transfers import SECOND_NS, transfer_rows
from drumline.producers.rings.unmarked_steps import UnmarkedCalls
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: Age of a later record at which one that a thread has begun to write, and not finished, is given up; ns.
GIVE_UP_NS = 10_000_000_000
#: Index of no communicator: the last operation of the step before.
_BEFORE = MAX_COMMS


class RingDerivation:
    """Turns the records of one ring into rows, and passes them to a batch writer. The caller saves `state`."""

    def __init__(self, writer: BatchWriter, state: RingState) -> None:
        self.writer, self.state = writer, state

    def advance(self, view: RingView) -> None:
        """Write what is complete, and move `state.position` behind it."""
        state = self.state
        self._note_losses(view)
        records = view.records[: self._readable(view)]
        at, hashes = self._operations(records, view.communicators)
        called = taken(records, at)
        segments, unmarked = marked_segments(records, state), None
        self._write_transfers(records, segments, view)
        if not len(segments.begin) and state.steps_from in ("", INFERRED):
            unmarked = UnmarkedCalls(called, at, state, view)
            segments = unmarked.segments
        segment = segments.of(at)
        untimed = segments.untimed[segment] | (called["protocol"] == COPY_ENGINES)
        outcome = outcomes(called, view.communicators["rank"], view.now_ns, untimed, ended=view.ended)
        if view.has_ticks:
            ticks = TickClock(state.ticks)
            called, known = ticks.converted(called, outcome.known)
            outcome, state.ticks = replace(outcome, known=known), ticks.saved
        if state.clock and view.clock_base_ns and state.clock_base_ns:  # the host's clock was set meanwhile
            state.clock = (state.clock[0] + view.clock_base_ns - state.clock_base_ns, state.clock[1])
        state.clock_base_ns = view.clock_base_ns
        state.clock = clock_offset(called, outcome.known, state.clock, view.now_ns)
        replays = replayed(records, called, segments, state)
        waiting = len(segments.begin)
        if replays:
            segment = replays.segments(segment)
            waiting = min(waiting, replays.first_waiting(len(records) // 2 if view.tight else -len(replays.replays)))
        cut = complete(segments, at, segment, outcome.done, len(records), view, waiting)
        inside: Array | slice = slice(int(np.searchsorted(at, cut.end)))
        if replays:  # operations of complete steps may lie behind the cut
            behind = (segment >= 0) & (segment < cut.first_open)
            inside = np.flatnonzero(behind | ((segment == cut.first_open) & (at < cut.end)))
            inside = inside[np.argsort(replays.order(at)[inside], kind="stable")]
            called = called.copy()
            called["host_ns"] = replays.called_ns(called["host_ns"])
            state.replays = replays.rest(called, at, cut.end)
        damaged = self._damaged(segments, len(records))
        number = np.where(damaged, -1, segments.number)[segment[inside]]
        offset_ns = state.clock[0] if state.clock else None
        operations, untrusted = as_operations(taken(called, inside), outcome.take(inside), number, offset_ns)
        state.counts["untrusted_times"] += untrusted
        progress = FeedProgress(view.now_ns, watermark_ns(segments, cut, records, view))
        note_passed(records[: cut.end], view.communicators, state)  # by the step that is open before it
        self._write(operations, hashes, segments, cut, damaged, progress)
        if unmarked:
            unmarked.publish(cut.end)
        state.counts["operations"] += len(number)
        state.position += cut.end
        state.damaged = [(first, last) for first, last in state.damaged if last > state.position]

    def _note_losses(self, view: RingView) -> None:
        """Note that operations were dropped: behind what was there when the ring was read last."""
        state, end = self.state, self.state.position + len(view.records)
        if (dropped := view.dropped - state.dropped_seen) > 0:
            state.lost += dropped
            state.damaged = [*state.damaged, (max(state.read_until, state.position), end + 1)]
        state.dropped_seen, state.read_until = view.dropped, end

    def _readable(self, view: RingView) -> int:
        """Return how many records can be processed: all before the first that is not written yet.

        One that its thread never finished is passed over, when a later one is old, or the process has ended.
        """
        records = view.records
        is_written = written(records, self.state.position)
        missing = np.flatnonzero(~is_written)
        old = np.flatnonzero(is_written & (records["host_ns"].astype(np.int64) < view.now_ns - GIVE_UP_NS))
        until = len(records) if view.ended else int(old[-1]) if len(old) else 0
        waiting = missing[missing >= until]
        return int(waiting[0]) if len(waiting) else len(records)

    def _operations(self, records: Array, communicators: Array) -> tuple[Array, Array]:
        """Return the positions of the operations, and the hash of each communicator (u8, by index)."""
        is_operation = (records["kind"] == Kind.OPERATION) & written(records, self.state.position)
        comm = records["comm"] % MAX_COMMS
        is_operation &= (records["comm"] < MAX_COMMS) & (records["generation"] == communicators["generation"][comm])
        return np.flatnonzero(is_operation), np.append(communicators["id"], np.uint64(0))

    def _write_transfers(self, records: Array, segments: Segments, view: RingView) -> None:
        """Write the rows of all transfers that are readable: they do not wait for the end of their step."""
        state, at = self.state, np.flatnonzero(written(records, self.state.position))
        at = at[at >= state.transfers_until - state.position]
        state.transfers_until = max(state.transfers_until, state.position + len(records))
        segment, step = segments.of(at), records["step"][at]
        number, offset = segments.number[segment], segments.offset[segment]
        is_earlier = (number >= 0) & (step > number - offset)  # a call from before the job's numbers started again
        table = transfer_rows(records[at], view.communicators, np.where(is_earlier, state.offset, offset))
        if table.rows:
            ended = np.append(view.records["host_ns"][len(records) :].astype(np.int64), view.now_ns - REPORT_NS)
            watermark_ns = max(0, int(ended.min())) // SECOND_NS * SECOND_NS
            self.writer.write(Topic.TRANSFER, table, FeedProgress(view.now_ns, watermark_ns))
            state.counts["transfers"] += int(table["operations"].sum())

    def _damaged(self, segments: Segments, records: int) -> Array:
        """Return in which segments operations were dropped, or not recorded: bool."""
        begin = self.state.position + np.append(0, segments.begin)
        end = self.state.position + np.append(segments.begin, records + 1)
        result = segments.paused.copy()
        for first, last in self.state.damaged:
            result |= (begin < last) & (end > first)
        return result

    def _write(
        self,
        operations: Operations,
        hashes: Array,
        segments: Segments,
        cut: Cut,
        damaged: Array,
        progress: FeedProgress,
    ) -> None:
        """Write the rows of the segments before the cut, and go on with the first open one."""
        state = self.state
        closed = np.flatnonzero(segments.number[: cut.first_open] >= 0)
        steps = Steps(segments.number[closed], segments.start_ns[closed], segments.start_ns[closed + 1])
        last = state.last
        rows = light_rows(_with_last(operations, last), hashes, _with_last_step(steps, last))
        new = rows.steps.take(slice(1 if last else 0, None))
        skipped = new["skipped"].astype(bool) | damaged[closed] | ((closed == 0) & state.open.partial)
        untimed = segments.untimed[closed]
        skipped |= np.append(False, untimed)[: len(skipped)]  # its interval begins at an unknown time
        if last and last.stop_ns < 0:
            skipped[:1] = True  # likewise
        skipped, new, closed = skipped[~untimed], new.take(~untimed), closed[~untimed]
        newest = int(steps.number[-1]) if len(closed) else last.number if last else -1
        progress = progress._replace(complete_step=newest)
        if new.rows:
            host = host_columns(segments.host_of(closed))
            table = Table({**new.columns, **host, "skipped": skipped}, new.dictionaries)
            self.writer.write(Topic.STEP, table, progress, steps_from=state.steps_from)
            state.counts["skipped_steps"] += int(skipped.sum())
        fresh = rows.collectives["communicator"] != hashes[_BEFORE]
        self._write_collectives(rows.collectives.take(fresh), operations, hashes, progress)
        self.writer.heartbeat(progress)
        self._go_on(operations, hashes, steps, segments, cut)

    def _write_collectives(self, rows: Table, operations: Operations, hashes: Array, progress: FeedProgress) -> None:
        """Write the collectives by communicator; ordinals go on where earlier rows of the same step ended."""
        state = self.state
        lost = hashes[operations.communicator][operations.stop_ns == 0]
        state.counts["unknown_operations"] += len(lost)
        if state.lost and len(operations.communicator):  # of which communicator, nobody knows
            lost = np.append(lost, np.repeat(hashes[operations.communicator[:1]], min(state.lost, MOST_READ)))
            state.lost -= min(state.lost, MOST_READ)
        for communicator in np.unique(np.append(rows["communicator"], lost)).tolist():
            table, key = rows.take(rows["communicator"] == communicator), str(communicator)
            before = np.where(table["step"] < 0, state.outside.get(key, 0), 0)
            if state.open.partial:
                before = np.where(table["step"] == state.open.number, state.ordinals.get(key, 0), before)
            table = Table({**table.columns, "ordinal": table["ordinal"] + before.astype(np.int32)}, table.dictionaries)
            self.writer.write(
                Topic.COLLECTIVE, table, progress, communicator=communicator, dropped=int((lost == communicator).sum())
            )

    def _go_on(self, operations: Operations, hashes: Array, steps: Steps, segments: Segments, cut: Cut) -> None:
        """Set the state for the records behind the cut."""
        state, number = self.state, int(segments.number[cut.first_open])
        for communicator, count in _counted(hashes[operations.communicator[operations.step < 0]]):
            state.outside[communicator] = state.outside.get(communicator, 0) + count
        if len(steps.number):
            called = operations.take(operations.step == steps.number[-1])
            latest = int(np.argmax(called.call_ns)) if len(called.call_ns) else -1
            stop_ns = int(called.stop_ns.max()) if latest >= 0 and called.stop_ns[latest] > 0 else -1
            is_empty = latest < 0 and not segments.untimed[segments.number == steps.number[-1]].any()
            state.last = LastStep(
                int(steps.number[-1]), int(steps.start_ns[-1]), int(steps.end_ns[-1]), 0 if is_empty else stop_ns
            )
        of_open = _counted(hashes[operations.communicator[operations.step == number]]) if number >= 0 else []
        goes_on = cut.first_open == 0 and state.open.partial
        state.ordinals = dict(state.ordinals) if goes_on else {}
        for communicator, count in of_open:
            state.ordinals[communicator] = state.ordinals.get(communicator, 0) + count
        if segments.held:
            state.open = OpenStep(
                number,
                int(segments.start_ns[cut.first_open]),
                goes_on or bool(of_open),
                bool(segments.paused[cut.first_open]),
                bool(segments.untimed[cut.first_open]),
            )
        begun = segments.number[: cut.first_open + segments.held]
        state.newest = max(state.newest, int(begun.max(initial=-1)))
        state.offset = int(segments.offset[cut.first_open])


def _with_last(operations: Operations, last: LastStep | None) -> Operations:
    """Return the operations, and before them one that stands for those of the step before."""
    if last is None or last.stop_ns <= 0:
        return operations
    first = (_BEFORE, last.stop_ns, last.stop_ns, last.stop_ns, last.number, 0, 0)
    arrays = (getattr(operations, f.name) for f in fields(Operations))
    return Operations(
        *(np.append(np.array([value], array.dtype), array) for value, array in zip(first, arrays, strict=True))
    )


def _with_last_step(steps: Steps, last: LastStep | None) -> Steps:
    if last is None:
        return steps
    first = (last.number, last.start_ns, last.end_ns)
    arrays = (steps.number, steps.start_ns, steps.end_ns)
    return Steps(*(np.append(np.array([value], np.int64), array) for value, array in zip(first, arrays, strict=True)))


def _counted(communicators: Array) -> list[tuple[str, int]]:
    names, counts = np.unique(communicators, return_counts=True)
    return list(zip(map(str, names.tolist()), counts.tolist(), strict=True))
