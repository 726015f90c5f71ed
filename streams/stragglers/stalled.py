"""Steps that stop: how long the next one is waited for, and what is said of the window in which a job stands, and of
ranks that are gone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from drumline.streams.core.thresholds import INSUFFICIENT, OK, StragglerConfig
from drumline.streams.stragglers.alarm import Alarm
from drumline.streams.stragglers.analysis.cause import Cause
from drumline.streams.stragglers.analysis.verdict import WindowVerdict
from drumline.streams.stragglers.analysis.verdict_rows import WHOLE_JOB, RankVerdict
from drumline.streams.stragglers.state import JobState

#: Details of insufficient_data: ranks are heard but finish no steps; nobody is heard.
STALLED, SILENT = "stalled", "silent"


def patience_ns(state: JobState, config: StragglerConfig) -> int:
    """How long a step may take before whoever is in it counts as stuck, by the longest of the last two windows."""
    longest = 0
    for window in sorted(state.windows)[-2:]:
        for rank in sorted(state.windows[window].ranks)[:1]:  # all go at one pace
            packed = state.rank_rows(window, rank)
            if packed is not None and len(packed.rows):
                longest = max(longest, int(packed.rows["duration_ns"].max()))
    return max(config.stall_ns, config.stall_steps * longest)


def fall_quiet(state: JobState, now_ns: int, config: StragglerConfig) -> bool:
    """Mark who is not heard any more and whose steps stopped: nobody waits for them. True: all steps stopped, for
    longer than any step took lately. Call it only without lag."""
    sources = list(state.sources)
    stopped = all(now_ns - source.moved_ns > config.stall_ns for source in sources)
    patience = config.stall_ns
    if any(now_ns - source.moved_ns > patience and not source.stuck for source in sources) or stopped:
        patience = patience_ns(state, config)
    for source in sources:
        source.stuck = source.stuck or now_ns - source.moved_ns > patience
        source.silent = source.silent or source.stuck or now_ns - source.seen_ns > config.idle_ns
    return stopped and all(source.stuck for source in sources)


def stopped_window(state: JobState, now_ns: int, config: StragglerConfig) -> tuple[int, WindowVerdict] | None:
    """Of a job that stopped: the window that it does not get into, and the verdict on that: insufficient data, with
    the last step that each rank has completed. None where there is nothing to say, or that was said: no step was ever
    seen, or nobody is heard and no level is in force, as when a job is done."""
    heard = any(now_ns - source.seen_ns <= config.idle_ns for source in state.sources.ranks.values())
    if not state.windows or state.sources.stopped == (STALLED if heard else SILENT):
        return None
    standing = state.heads and any(alarm[1] > OK for alarm in state.heads[max(state.heads)]["alarms"].values())
    if not heard and not standing:
        return None
    state.sources.stopped = STALLED if heard else SILENT
    cause = Cause("insufficient_data", state.sources.stopped)
    last = {rank: source.complete for rank, source in sorted(state.sources.ranks.items())}
    rows = [RankVerdict(WHOLE_JOB, INSUFFICIENT, cause, evidence={"complete_step": min(last.values())})]
    rows += [RankVerdict(rank, INSUFFICIENT, cause, evidence={"complete_step": step}) for rank, step in last.items()]
    return max(state.windows) + 1, WindowVerdict(tuple(rows), 0, 0, 0, 0, {})


def with_unheard(verdict: WindowVerdict, alarms: Mapping[int, Alarm]) -> WindowVerdict:
    """The verdict, with a row for each rank that has a level in force and no steps in this window: its alarm (as it was
    after the window before) must not stand for ever, nor end without a word."""
    there = {row.rank for row in verdict.rows}
    gone = sorted(rank for rank, alarm in alarms.items() if alarm.level > OK and rank not in there)
    rows = [RankVerdict(rank, INSUFFICIENT, Cause("insufficient_data", SILENT)) for rank in gone]
    return replace(verdict, rows=tuple(sorted((*verdict.rows, *rows), key=lambda row: row.rank)))
