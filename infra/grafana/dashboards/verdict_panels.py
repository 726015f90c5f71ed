"""Panels about verdicts that several dashboards show."""

from __future__ import annotations

from drumline.infra.grafana.liveness import ACTIVE_RUNS
from drumline.infra.grafana.model import Field, Link, Panel, PanelQuery, encoded
from drumline.infra.grafana.thresholds import LEVEL, SHARE

#: Columns that links to a job need beside its name, and how tables show them.
KEYS = f"{encoded('job')} AS job_key, {encoded('run')} AS run_key"
KEY_COLUMNS = "job_key:s run_key:s"
KEY_FIELDS = {"job_key": Field(hidden=True), "run_key": Field(hidden=True)}
TO_JOB = Link(
    "This job", "drumline-job", {"job": "${__data.fields.job_key}", "run": "${__data.fields.run_key}"}, keeps=()
)
TO_RANK = Link(
    "This rank",
    "drumline-rank",
    {"job": "${__data.fields.job_key}", "run": "${__data.fields.run_key}", "rank": "${__data.fields.rank}"},
    keeps=(),
)
TO_STRAGGLERS = Link(
    "Its verdicts",
    "drumline-stragglers",
    {"job": "${__data.fields.job_key}", "run": "${__data.fields.run_key}"},
    keeps=(),
)


def late_ranks(where: str, limit: int = 50) -> Panel:
    """Return the table of ranks with their last verdict in the range, the most expensive first."""
    return Panel(
        "table",
        "Late ranks",
        "Ranks that were late in this time range: level in force at its end (none where the job is not "
        "active any more), the worst level, cause and end of the "
        "last bad "
        "window, largest share of the job's time lost, GPU-seconds and money of all windows. Rank -1 is the job as a "
        "whole "
        "(a slow link, or all ranks slower).",
        PanelQuery(
            f"""
            SELECT job, run, rank, host, level, worst, cause, detail, late_with, confidence, lost_share,
                gpu_seconds_lost,
                money_lost, until, {KEYS}
            FROM (
                SELECT job, run, rank, argMax(s.host, window_end) AS host,
                    if((job, run) IN ({ACTIVE_RUNS}), argMaxIf(@level, window_end, @evaluated), NULL) AS level,
                    max(@level) AS worst,
                    argMaxIf(cause, window_end, @bad) AS cause, argMaxIf(detail, window_end, @bad) AS detail,
                    argMaxIf(group, window_end, @bad) AS late_with,
                    argMaxIf(confidence, window_end, @bad) AS confidence,
                    maxIf(s.lost_share, @bad) AS lost_share, sum(s.gpu_seconds_lost) AS gpu_seconds_lost,
                    sum(s.money_lost) AS money_lost, maxIf(window_end, @bad) AS until
                FROM stragglers AS s WHERE {where} AND @window GROUP BY job, run, rank
            ) WHERE worst > 0 ORDER BY level DESC, worst DESC, gpu_seconds_lost DESC LIMIT {limit}
            """,
            "job:s run:s rank:n host:s level:n worst:n cause:s detail:s late_with:s confidence:s lost_share:n "
            f"gpu_seconds_lost:n money_lost:n until:t {KEY_COLUMNS}",
            "table",
        ),
        unit="none",
        width=24,
        fields={
            "job": Field(link=TO_JOB),
            "rank": Field(link=TO_RANK, decimals=0),
            "level": Field(levels=True, link=TO_STRAGGLERS, thresholds=LEVEL),
            "worst": Field(levels=True, thresholds=LEVEL),
            "lost_share": Field("percentunit", thresholds=SHARE, decimals=1),
            "gpu_seconds_lost": Field("s", decimals=1),
            "money_lost": Field(decimals=2),
            **KEY_FIELDS,
        },
        empty="no rank is late",
    )


def lost_share(where: str, by: str = "rank", key: str = "") -> Panel:
    """Return lost share over time, a line per rank (or per job: the largest of its ranks)."""
    label = "toString(s.rank) AS rank" if by == "rank" else "job"
    return Panel(
        "timeseries",
        f"Lost time by {by}",
        "Share of the job's time lost to one rank, by window of steps"
        + (", the largest of its ranks" if by == "job" else "")
        + ". Lines: the levels suspect, warning and critical, at which alerts fire too (after recurrence).",
        PanelQuery(
            f"""
            SELECT $__timeInterval_ms(window_end) AS time, {label}, max(s.lost_share) AS lost FROM (
                SELECT job, rank, window_end, lost_share FROM stragglers WHERE {where} AND @window AND @known
            ) AS s GROUP BY time, s.{by} ORDER BY time, s.{by}
            """,
            f"time:t {by}:s lost:n",
        ),
        unit="percentunit",
        thresholds=SHARE,
        key=key,
        empty="no verdicts in this time range",
    )
