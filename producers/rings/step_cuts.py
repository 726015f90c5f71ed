"""Parts of a ring's records by step, and how many of them are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drumline.producers.derive.steps.host_columns import UNKNOWN
from drumline.producers.derive.steps.steps import API, MARKER, OPTIMIZER
from drumline.producers.ipc.host_sums import from_text
from drumline.producers.rings.operations import REPORT_NS
from drumline.producers.rings.ring_file import COPY_ENGINES, MARK_PAUSED, MARK_UNTIMED, Kind, mark_names, written
from drumline.producers.rings.state import RingState
from drumline.schemas.columns import Array

#: Largest number of a step that the contract allows.
MOST_STEPS = 1 << 53
#: Source of the steps, by `count` of their marks.
SOURCES = (OPTIMIZER, API, MARKER)


@dataclass(frozen=True)
class RingView:
    """A ring as it was read at one time.

    Attributes:
        records: from RingState.position on (ring_file.RECORD).
        communicators: the table, read after the records.
        now_ns: current time.
        dropped: operations that the process has dropped so far.
        ended: the process has ended: nothing follows.
        tight: the ring is filling up: what is old is given up.
        more: further records are in the ring.
        clock_base_ns: the host's clock less its monotonic one; it changes when the clock is set. 0 = not known.
        has_ticks: the GPU's times are ticks (gpu_ticks.py).
    """

    records: Array
    communicators: Array
    now_ns: int
    dropped: int = 0
    ended: bool = False
    tight: bool = False
    more: bool = False
    clock_base_ns: int = 0
    has_ticks: bool = False


@dataclass(frozen=True)
class Segments:
    """Parts of the records, each in one step (number -1: in none). The last one is open.

    Attributes:
        begin: position of the first record of each but the first, rising.
        number, start_ns: of each; int64.
        offset: of each number to the job's own.
        paused: the job had switched the recording off, for some time of it; bool.
        untimed: NCCL did not measure its operations, to spare the job; nothing of it is published; bool.
        held: records at the begin of a segment that need not be read again.
        holds: whether the last one waits although it is in no step.
        host: sums of host time of each but the last, see ipc/host_sums.py; none = unknown.
    """

    begin: Array
    number: Array
    start_ns: Array
    offset: Array
    paused: Array
    untimed: Array
    held: int = 1
    holds: bool = False
    host: Sequence[tuple[int, ...]] = ()

    def host_of(self, segments: Array) -> list[tuple[int, ...]]:
        """Return the sums of host time of these segments."""
        return [self.host[segment] if segment < len(self.host) else UNKNOWN for segment in segments.tolist()]

    def of(self, at: Array) -> Array:
        """Return the segment of each position."""
        return np.searchsorted(self.begin, at, side="right")


@dataclass(frozen=True)
class Cut:
    """Records before position `end` are published now; segment `first_open` and all later ones are not complete."""

    end: int
    first_open: int


def _step_marks(records: Array, state: RingState) -> tuple[Array, Array]:
    """Return the positions of the marks of steps, and which of the parts between them NCCL does not measure."""
    begin = np.flatnonzero((records["kind"] == Kind.STEP_MARK) & written(records, state.position))
    return begin, np.append(state.open.untimed, records["function"][begin] & MARK_UNTIMED > 0)


def untimed_operations(records: Array, at: Array, state: RingState) -> Array:
    """Return which of the operations at these positions NCCL does not measure.

    Those in steps whose marks state so, and collectives by copy engines.
    """
    begin, untimed = _step_marks(records, state)
    in_step = untimed[np.searchsorted(begin, at, side="right")]
    return np.asarray(in_step | (records["protocol"][at] == COPY_ENGINES), bool)


def marked_segments(records: Array, state: RingState) -> Segments:
    """Cut the records at the marks of steps. Numbers that start again are counted on."""
    begin, untimed = _step_marks(records, state)
    is_switch = (records["kind"] == Kind.RECORD) & written(records, state.position)
    paused = np.append(state.open.paused, records["function"][begin] & MARK_PAUSED > 0)
    paused[np.searchsorted(begin, np.flatnonzero(is_switch), side="right")] = True
    newest, offset = state.newest, state.offset
    numbers, offsets = [state.open.number], [offset]
    for number in records["step"][begin].tolist():
        is_step = 0 <= number <= MOST_STEPS
        if is_step:
            offset = max(offset, newest + 1 - number)
            newest = number + offset
        numbers.append(newest if is_step else -1)
        offsets.append(offset)
    if len(begin):
        source = int(records["count"][begin[-1]])
        state.steps_from = SOURCES[source if source < len(SOURCES) else 0]
    return Segments(
        begin,
        np.array(numbers, np.int64),
        np.append([state.open.start_ns], records["host_ns"][begin].astype(np.int64)),
        np.array(offsets, np.int64),
        paused,
        untimed,
        host=[from_text(name) for name in mark_names(records[begin])],
    )


def complete(
    segments: Segments, at: Array, segment: Array, done: Array, records: int, view: RingView, most: int
) -> Cut:
    """Return how far the records are complete; `at`, `segment`: of the operations, `done`: whether each is. At most
    segments before `most` are.
    """
    closed = len(segments.begin)
    if view.ended:
        return Cut(records, closed)
    waiting = ~done & (segment >= 0)
    if view.tight:
        waiting &= at >= records // 2
    first_open = min(most, int(segment[waiting].min(initial=closed)))
    end = int(segments.begin[first_open - 1]) + segments.held if first_open else 0
    is_outside = segments.number[first_open] < 0 and not (segments.holds and first_open == closed)
    if is_outside or (view.tight and segments.held):  # what lies in no step does not wait for its end
        until = int(segments.begin[first_open]) if first_open < closed else records
        end = max(end, int(at[waiting].min(initial=until)))
    return Cut(end, first_open)


def watermark_ns(segments: Segments, cut: Cut, records: Array, view: RingView) -> int:
    """Return the time before which no later row starts."""
    called = records["host_ns"].astype(np.int64)
    times = [
        view.now_ns - REPORT_NS,
        *called[cut.end : cut.end + 1].tolist(),
        *called[-1 if view.more else len(called) :].tolist(),
    ]
    if segments.number[cut.first_open] >= 0:
        times.append(int(segments.start_ns[cut.first_open]))
    return int(max(0, min(times)))
