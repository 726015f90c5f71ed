"""The windows of a run that are not over: how far its live sources are, and which windows are kept for late rows."""

from __future__ import annotations

from collections.abc import Iterable

from drumline.streams.stragglers.state import JobState


def last_complete_step(state: JobState, now_ns: int) -> int:
    """Return the last step that all live sources have completed."""
    lowest = state.sources.frontier.lowest()
    if lowest is None:
        return 1 << 62
    if state.awaits_sources and now_ns - state.sources.first_seen_ns <= state.config.join_ns:
        return -1  # the run has just begun: its other ranks may still be in Kafka
    return lowest


def first_kept(state: JobState, unacked: Iterable[int], is_pressed: bool) -> int:
    """Return the first window to keep.

    Kept are windows that late rows may belong to, windows that late rows changed (evaluated again at the next tick),
    and windows with an unacknowledged verdict (evaluated again after a crash), which are `unacked`. `is_pressed`: the
    budget leaves the job no retention.
    """
    config, newest = state.config, max(state.published, default=0)
    lowest = state.sources.frontier.lowest()
    through = newest if lowest is None else min(newest, config.window_of(lowest))
    retention = 0 if is_pressed else config.retention_steps
    kept, oldest = -(-retention // config.window_steps), newest - config.max_windows
    changed = (max(w, oldest) for w in state.dirty if w in state.published)
    first = min([*unacked, *changed], default=newest)
    return min(first, oldest if state.awaits_sources else max(through - kept, oldest))
