"""Collectives and stragglers: who is late, since when, why, and how do we know?"""

from __future__ import annotations

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.dashboards.collectives import BUS, PAIRS, RATES, SIZES
from drumline.infra.grafana.dashboards.status import cause, faults, stat
from drumline.infra.grafana.dashboards.verdict_panels import (
    ACTION,
    ACTION_FIELD,
    CAUSE_FIELD,
    FROM_LINE,
    late_ranks,
    lost_share,
)
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery
from drumline.infra.grafana.thresholds import LEVEL, LOST, SHARE
from drumline.infra.grafana.variables import JOB, LABELLED, MARKS, RANKS, RUN

TO_RANK = Link("This rank", "drumline-rank", {"rank": "${__data.fields.rank}"})
TO_WINDOW = Link(
    "These steps on the timeline", "drumline-timeline", {"rank": "${__data.fields.rank}"},
    time=("${__data.fields.from_ms}", "${__data.fields.to_ms}"),
)  # fmt: skip
_CHOSEN = "stragglers WHERE @job AND @run AND @ranks AND @window"
_LAST = f"window_end, @evaluated) AS last FROM {_CHOSEN} GROUP BY run, rank"

NUMBERS = (
    stat(
        "Level",
        "Highest level in force of the chosen ranks, after the last window in this time range.",
        f"SELECT max(last) AS value FROM (SELECT argMaxIf(@level, {_LAST})",
        "none",
        limits=LEVEL,
        levels=True,
    ),
    faults(
        "Ranks late",
        "Ranks at warning or critical after the last window in this time range.",
        f"SELECT countIf(last >= 2) AS value FROM (SELECT argMaxIf(if(rank < 0, 0, @level), {_LAST})",
    ),
    stat(
        "Lost now",
        "Share of the job's time lost to its most expensive rank in the last window.",
        f"SELECT max(last) AS value FROM (SELECT argMaxIf(lost_share, {_LAST})",
        "percentunit",
        limits=SHARE,
    ),
    stat(
        "GPU time lost",
        "GPU time spent waiting for what was late.",
        f"SELECT sum(gpu_seconds_lost) AS value FROM {_CHOSEN}",
        "s",
        limits=LOST,
    ),
    stat(
        "Windows evaluated",
        "Windows of steps with enough data for a verdict.",
        f"SELECT uniqExactIf((run, window_start), @evaluated) AS value FROM {_CHOSEN}",
    ),
    stat(
        "Windows without a verdict",
        "Windows with too few ranks or steps to compare.",
        f"SELECT uniqExact((run, window_start)) - uniqExactIf((run, window_start), @evaluated) AS value FROM {_CHOSEN}",
    ),
)
STATES = Panel(
    "state-timeline",
    "Level in force by rank",
    "Level of each rank after the last window, with recurrence: two of three windows raise a level, three in a row "
    "lower it. The ten ranks with the worst levels; 'whole job' is a slow link, or all ranks slower.",
    PanelQuery(
        worst(
            """
            SELECT $__timeInterval_ms(window_end) AS time,
                if(s.rank < 0, 'whole job', concat('rank ', toString(s.rank))) AS member,
                argMax(@level, window_end) AS v
            FROM (SELECT rank, window_end, state FROM stragglers WHERE @job AND @run AND @ranks AND @window) AS s
            GROUP BY time, s.rank
            """,
            "level", by="sum(v)", bands=False,
        ),
        "time:t series:s member:s level:n",
    ),
    unit="none",
    series="{series}",
    height=9,
    levels=True,
    thresholds=LEVEL,
    minimum=None,
    empty="no verdicts in this time range",
)  # fmt: skip


def _per_step(column: str) -> str:
    """Return the mean of a column per step, by rank and time."""
    return f"""
    SELECT $__timeInterval_ms(window_end) AS time, toString(s.rank) AS member,
        avg({column} / greatest(steps_used, 1)) AS v
    FROM (
        SELECT rank, window_end, {column}, steps_used FROM stragglers
        WHERE @job AND @run AND @ranks AND rank >= 0 AND @window AND @known
    ) AS s GROUP BY time, s.rank
    """


LATENESS = Panel(
    "heatmap",
    "Lateness by rank",
    "Time by which a rank was later than the last of its waiting peers, per step, mean over the window; the ten latest "
    "ranks. It names victims too: a rank that waited elsewhere comes late. Lost time (below) follows the attribution.",
    PanelQuery(
        worst(
            _per_step("lateness_ns"),
            "lateness", by="avg(v)", prefix="rank ", bands=False,
        ),
        "time:t series:s member:s lateness:n",
    ),
    unit="ns",
    series="{series}",
    height=9,
    empty="no verdicts in this time range",
)  # fmt: skip
#: Milliseconds that a rank's steps had more than its peers', by part, and the collective that waited longest.
_COLLECTIVE = "JSONExtract{}(evidence_json, 'collective', '{}')"
_EVIDENCE = f"""
arrayStringConcat(arrayFilter(part -> part != '', [
    arrayStringConcat(arrayMap(p -> concat(replaceOne(p.1, '_ns', ''), if(p.2 > 0, ' +', ' '),
        toString(round(p.2 / 1e6, 1)), ' ms'), arrayReverseSort(p -> p.2, arrayFilter(p -> abs(p.2) >= 1e5,
        JSONExtractKeysAndValues(evidence_json, 'excess_ns', 'Float64')))), ', '),
    if({_COLLECTIVE.format("String", "operation")} = '', '', concat({_COLLECTIVE.format("String", "operation")}, ' #',
        toString({_COLLECTIVE.format("Int", "ordinal")}), ' of step ', toString({_COLLECTIVE.format("Int", "step")})))
]), '; ')"""
CHANGES = Panel(
    "table",
    "Verdicts, with their evidence",
    "One row for each change of a verdict: level, steps (they lead to the timeline), the numbers it rests on "
    "(docs/design/stragglers.md), what to do. Evidence: what the rank's steps had more than its peers', ms by part, "
    "and the collective that waited longest.",
    PanelQuery(
        f"""
        SELECT window_start AS time, rank, level, {cause("v")} AS cause,
            encodeURLComponent(v.cause) AS cause_key, lost_share,
            concat(toString(first_step), ' to ', toString(last_step)) AS steps, {_EVIDENCE} AS evidence,
            action, toUnixTimestamp64Milli(window_start) AS from_ms, toUnixTimestamp64Milli(window_end) AS to_ms
        FROM (
            SELECT *, @level AS level, {ACTION}
            FROM {_CHOSEN} AND changed AND @bad
        ) AS v ORDER BY from_ms DESC LIMIT 500
        """,
        "time:t rank:n level:n cause:s cause_key:s lost_share:n steps:s evidence:s action:s from_ms:n to_ms:n",
        "table",
    ),
    unit="none",
    width=24,
    height=10,
    fields={
        "rank": Field(link=TO_RANK, width=90, decimals=0, texts={-1: "whole job"}),
        "level": Field(width=90, levels=True, thresholds=LEVEL),
        "cause": CAUSE_FIELD,
        "cause_key": Field(hidden=True),
        "lost_share": Field("percentunit", "Time lost", thresholds=SHARE, decimals=1),
        "steps": Field(link=TO_WINDOW),
        "evidence": Field(width=280, wraps=True, inspect=True),
        "action": ACTION_FIELD,
        "from_ms": Field(hidden=True),
        "to_ms": Field(hidden=True),
    },
    empty="no verdict changed",
)
WAITING = Panel(
    "timeseries",
    "Waiting in collectives by rank",
    "Time per step that a rank stood in collectives until the last one came, all communicators together. The late "
    "rank waits least: the ten that wait least, beside all.",
    PanelQuery(
        worst(
            _per_step("wait_ns"),
            "waited", by="-avg(v)", prefix="rank ",
        ),
        "time:t series:s member:s waited:n",
    ),
    unit="ns",
    series="{series}",
    link=FROM_LINE,
    empty="no verdicts in this time range",
)  # fmt: skip

STRAGGLERS = Dashboard(
    "drumline-stragglers",
    "Collectives and stragglers",
    "Who is late, since when, why, what does it cost, and how do we know?",
    "job",
    (
        NUMBERS,
        (STATES, LATENESS),
        (late_ranks("@job AND @run AND @ranks"),),
        (lost_share("@job AND @run AND @ranks AND rank >= 0", key="lost"), WAITING),
        (CHANGES,),
        (BUS, SIZES),
        (RATES, PAIRS),
    ),
    (*LABELLED, JOB, RUN, RANKS),
    MARKS,
)
