"""Jobs and ranks whose steps stop: the stall timeout, and verdicts on stalled jobs and silent ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from drumline.infra.guidance.causes import INSUFFICIENT_DATA
from drumline.schemas.parts.joining import allowance_ns
from drumline.streams.core.thresholds import INSUFFICIENT, OK, StragglerConfig
from drumline.streams.stragglers.alarm import Alarm, load_alarms
from drumline.streams.stragglers.analysis.cause import Cause
from drumline.streams.stragglers.analysis.verdict import WindowVerdict
from drumline.streams.stragglers.analysis.verdict_rows import WHOLE_JOB, RankVerdict
from drumline.streams.stragglers.lengths import IDLE_STEPS
from drumline.streams.stragglers.state import JobState

#: Details of insufficient_data: ranks are active but finish no steps; no rank is active.
STALLED, SILENT = "stalled", "silent"


def stall_timeout_ns(state: JobState, config: StragglerConfig) -> int:
    """Return how long a step may take before its ranks count as stuck, from the longest of the last two blocks."""
    longest = 0
    for block in sorted(state.blocks)[-2:]:
        for rank in sorted(state.blocks[block].ranks)[:1]:  # all ranks run in lockstep
            rows = state.steps.rank_rows(block, rank)
            longest = max(longest, int(rows["duration_ns"].max())) if len(rows) else longest
    return max(config.stall_ns, config.stall_steps * longest)


def idle_timeout_ns(state: JobState, config: StragglerConfig) -> int:
    """Return for how long a source that is not silent may send nothing: communicators send once a step."""
    return max(config.idle_ns, IDLE_STEPS * state.lengths.step_ns) + allowance_ns(state.world_size)


def mark_silent(state: JobState, now_ns: int, config: StragglerConfig) -> bool:
    """Mark sources that are silent, and sources whose steps stopped; call it only without lag.

    Returns whether all steps of the job stopped, for longer than the stall timeout.
    """
    sources = list(state.sources)
    stopped = all(now_ns - source.moved_ns > config.stall_ns for source in sources)
    idle_ns, timeout_ns = idle_timeout_ns(state, config), config.stall_ns
    if any(now_ns - source.moved_ns > timeout_ns and not source.stuck for source in sources) or stopped:
        timeout_ns = stall_timeout_ns(state, config)
    for source in sources:
        source.stuck = source.stuck or now_ns - source.moved_ns > timeout_ns
        source.silent = source.silent or source.stuck or now_ns - source.seen_ns > idle_ns
    return stopped and all(source.stuck for source in sources)


def stalled_window(state: JobState, now_ns: int, config: StragglerConfig) -> tuple[int, WindowVerdict] | None:
    """Return the window that a stopped job does not reach, and its verdict, or None if there is nothing to publish.

    The verdict is insufficient data, with the last step that each rank has completed. Nothing is published if it was
    before, if no step was ever seen, or if no rank is active and no level is in force, as when a job has ended.
    """
    idle_ns = idle_timeout_ns(state, config)
    is_active = any(now_ns - source.seen_ns <= idle_ns for source in state.sources.ranks.values())
    if not state.blocks or state.sources.stopped == (STALLED if is_active else SILENT):
        return None
    alarms = load_alarms(state.published[max(state.published)]["alarms"]) if state.published else {}
    if not is_active and not any(alarm.level > OK for alarm in alarms.values()):
        return None
    state.sources.stopped = STALLED if is_active else SILENT
    cause = Cause(INSUFFICIENT_DATA, state.sources.stopped)
    last = {rank: source.complete for rank, source in sorted(state.sources.ranks.items())}
    rows = [RankVerdict(WHOLE_JOB, INSUFFICIENT, cause, evidence={"complete_step": min(last.values())})]
    rows += [RankVerdict(rank, INSUFFICIENT, cause, evidence={"complete_step": step}) for rank, step in last.items()]
    return state.lengths.window_of(_newest_step(state)) + 1, WindowVerdict(tuple(rows), 0, 0, 0, 0, {})


def _newest_step(state: JobState) -> int:
    """Return the last step that a rank completed, or of which there are rows."""
    cells = state.blocks[max(state.blocks)]
    of_lateness = (max(steps) for parts in cells.lateness.values() for steps in parts.values())
    return max([cells.last_step, *(source.complete for source in state.sources.ranks.values()), *of_lateness])


def add_silent_ranks(verdict: WindowVerdict, alarms: Mapping[int, Alarm]) -> WindowVerdict:
    """Return the verdict with a row for each rank that has a level in force and no steps in this window.

    Without the row its level would stay in force for ever, or end unpublished. `alarms`: by rank, after the window
    before.
    """
    present = {row.rank for row in verdict.rows}
    silent = sorted(rank for rank, alarm in alarms.items() if alarm.level > OK and rank not in present)
    rows = [RankVerdict(rank, INSUFFICIENT, Cause(INSUFFICIENT_DATA, SILENT)) for rank in silent]
    return replace(verdict, rows=tuple(sorted((*verdict.rows, *rows), key=lambda row: row.rank)))
