"""The windows of a run that are not over: how far its live sources are, and which windows are kept for late rows."""

from __future__ import annotations

from collections.abc import Iterable

from drumline.schemas.batch import Batch
from drumline.streams.stragglers.state import JobState

#: A step behind all that come: no live source is waited for.
NEVER = 1 << 62


def window_of(state: JobState, verdict: Batch) -> int:
    """Return the window of a verdict of the run."""
    return state.lengths.window_of(int(verdict.envelope["first_step"]))


def last_complete_step(state: JobState, now_ns: int) -> int:
    """Return the last step that all live sources have completed."""
    lowest = state.sources.frontier.lowest()
    if lowest is None:
        return NEVER
    if state.awaits_sources and now_ns - state.sources.first_seen_ns <= state.config.join_ns:
        return -1  # the run has just begun: its other ranks may still be in Kafka
    return lowest


def first_kept(state: JobState, unacked: Iterable[int], is_pressed: bool) -> int:
    """Return the first window to keep.

    Kept are windows that late rows may belong to, windows that late rows changed (evaluated again at the next tick),
    and windows with an unacknowledged verdict (evaluated again after a crash), which are `unacked`. `is_pressed`: the
    budget leaves the job no retention.
    """
    lengths, newest = state.lengths, max(state.published, default=0)
    lowest = state.sources.frontier.lowest()
    through = newest if lowest is None else min(newest, lengths.window_of(lowest))
    retention = 0 if is_pressed else state.config.retention_steps
    oldest = lengths.before(newest, state.config.max_steps)
    changed = (max(w, oldest) for w in state.dirty if w in state.published)
    first = min([*unacked, *changed], default=newest)
    return min(first, oldest if state.awaits_sources else max(lengths.before(through, retention), oldest))
