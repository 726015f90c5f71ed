"""Panels about verdicts that several dashboards show."""

from __future__ import annotations

from collections.abc import Iterable

from drumline.infra.clickhouse.main_cause import main_cause
from drumline.infra.grafana.alerts.causes import number
from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.dashboards.status import cause, in_sql
from drumline.infra.grafana.liveness import ACTIVE_RUNS, HUNG_RANKS
from drumline.infra.grafana.model import Field, Link, Panel, PanelQuery
from drumline.infra.grafana.thresholds import LEVEL, LEVEL_HUNG, LOST, SHARE
from drumline.infra.grafana.tokens import encoded
from drumline.infra.guidance.causes import CAUSES

#: Columns that links to a job need beside its name, and how tables show them.
KEYS = f"{encoded('job')} AS job_key, {encoded('run')} AS run_key"
KEY_COLUMNS = "job_key:s run_key:s"
KEY_FIELDS = {"job_key": Field(hidden=True), "run_key": Field(hidden=True)}
_RUN = {"job": "${__data.fields.job_key}", "run": "${__data.fields.run_key}"}
TO_JOB = Link("This job", "drumline-job", _RUN, keeps=())
TO_RANK = Link("This rank", "drumline-rank", {**_RUN, "rank": "${__data.fields.rank}"}, keeps=())
TO_STRAGGLERS = Link("Its verdicts", "drumline-stragglers", _RUN, keeps=())
#: From a line of `worst` over ranks.
FROM_LINE = Link("This rank", "drumline-rank", {"rank": "${__field.labels.member}"})


def _of_cause(texts: Iterable[str], name: str) -> str:
    """Return SQL of the text of a row's cause and detail, from the guidance, as the column `name`."""
    known = in_sql(("see docs/reference/causes.md", *texts))
    return f"{known}[1 + {number('cause', 'detail')}] AS {name}"


ACTION = _of_cause((entry.act for entry in CAUSES), "action")
CAUSE_FIELD = Field(width=200, page="/cause/${__data.fields.cause_key}")
ACTION_FIELD = Field(header="What to do", width=300, fills=True, wraps=True)
RANK_FIELD = Field(link=TO_RANK, width=90, decimals=0, texts={-1: "whole job"})


def guidance_of(where: str) -> Panel:
    """Return the table of what the causes of verdicts mean, how to check them, and what to do."""
    return Panel(
        "table",
        "What its causes mean, and what to do",
        "Causes of the bad windows in this time range, the most expensive first. Each leads to its runbook, which "
        "names who else can help.",
        PanelQuery(
            f"""
            SELECT {cause("c")} AS cause, gpu_seconds_lost, meaning, check, action,
                encodeURLComponent(c.cause) AS cause_key
            FROM (
                SELECT *, {_of_cause((entry.meaning for entry in CAUSES), "meaning")},
                    {_of_cause((entry.check for entry in CAUSES), "check")}, {ACTION}
                FROM (
                    SELECT cause, detail, sum(s.gpu_seconds_lost) AS gpu_seconds_lost FROM stragglers AS s
                    WHERE {where} AND @window AND @bad GROUP BY cause, detail
                )
            ) AS c ORDER BY gpu_seconds_lost DESC LIMIT 20
            """,
            "cause:s gpu_seconds_lost:n meaning:s check:s action:s cause_key:s",
            "table",
        ),
        unit="none",
        width=24,
        height=6,
        fields={
            "cause": CAUSE_FIELD,
            "cause_key": Field(hidden=True),
            "gpu_seconds_lost": Field("s", "GPU time lost", decimals=1, thresholds=LOST),
            "meaning": Field(width=250, wraps=True),
            "check": Field(header="How to check it", width=420, wraps=True),
            "action": ACTION_FIELD,
        },
        empty="this rank held nobody up",
    )


def late_ranks(where: str, limit: int = 50, job: bool = False) -> Panel:
    """Return the table of ranks with their last verdict in the range, the most expensive first. `job`: of many jobs."""
    shown = ("job:s", "") if job else ("", "lost_share:n ")
    columns = f"{shown[0]} rank:n host:s level:n worst:n cause:s {shown[1]}gpu_seconds_lost:n action:s"
    names = ", ".join(part.partition(":")[0] for part in columns.split())
    hidden = "" if job else "job:s"
    return Panel(
        "table",
        "Late ranks",
        "Ranks that were late in this time range: level in force at its end (none where the job is not "
        "active any more, hung where the job waits for it), the worst "
        "level, the cause that cost most and what to do about it"
        + ("" if job else ", largest share of the job's time lost")
        + ", GPU time lost in all windows. The whole job is named where a link is slow or all ranks are slower.",
        PanelQuery(
            f"""
            SELECT {names}, cause_key, {KEYS}{"" if job else ", job"}
            FROM (
                SELECT job, run, rank, host, level, worst, gpu_seconds_lost, lost_share,
                    {cause("numbered")} AS cause, encodeURLComponent(numbered.cause) AS cause_key, action FROM (
                    SELECT *, {ACTION} FROM (
                        SELECT job, run, rank, argMax(s.host, window_end) AS host,
                            multiIf((job, run, rank) IN ({HUNG_RANKS}), {LEVEL_HUNG},
                                (job, run) IN ({ACTIVE_RUNS}), argMaxIf(@level, window_end, @evaluated), NULL) AS level,
                            max(@level) AS worst,
                            {main_cause("@bad")} AS why, why.1 AS cause, why.2 AS detail,
                            maxIf(s.lost_share, @bad) AS lost_share, sum(s.gpu_seconds_lost) AS gpu_seconds_lost
                        FROM (SELECT * FROM stragglers WHERE {where} AND @window) AS s GROUP BY job, run, rank
                    )
                ) AS numbered
            ) WHERE worst > 0 OR level = {LEVEL_HUNG}
            ORDER BY level DESC, worst DESC, gpu_seconds_lost DESC LIMIT {limit}
            """,
            f"{columns} cause_key:s {KEY_COLUMNS} {hidden}",
            "table",
        ),
        unit="none",
        width=24,
        height=9,
        fields={
            "job": Field(link=TO_JOB) if job else Field(hidden=True),
            "rank": RANK_FIELD,
            "level": Field(header="Level now", width=90, levels=True, link=TO_STRAGGLERS, thresholds=LEVEL),
            "worst": Field(header="Worst level", levels=True, thresholds=LEVEL),
            "cause": CAUSE_FIELD,
            "cause_key": Field(hidden=True),
            **({} if job else {"lost_share": Field("percentunit", "Time lost", thresholds=SHARE, decimals=1)}),
            "gpu_seconds_lost": Field("s", "GPU time lost", decimals=1, thresholds=LOST),
            "action": ACTION_FIELD,
            **KEY_FIELDS,
        },
        empty="no rank is late",
    )


def lost_share(where: str, by: str = "rank", key: str = "") -> Panel:
    """Return lost share over time: the ranks (or jobs, by the largest of their ranks) that cost most, and all."""
    member, prefix = ("toString(s.rank)", "rank ") if by == "rank" else ("job", "")
    rows = f"""
    SELECT $__timeInterval_ms(window_end) AS time, {member} AS member, max(s.lost_share) AS v FROM (
        SELECT job, rank, window_end, lost_share FROM stragglers WHERE {where} AND @window AND @known
    ) AS s GROUP BY time, s.{by}
    """
    return Panel(
        "timeseries",
        f"Lost time by {by}",
        "Share of the job's time lost to one rank, by window of steps"
        + (", the largest of its ranks" if by == "job" else "")
        + f". The ten {by}s that cost most, beside all. Lines: the levels suspect, warning and critical, at which "
        "alerts fire too (after recurrence).",
        PanelQuery(worst(rows, "lost", prefix=prefix, bands=by == "rank"), "time:t series:s member:s lost:n"),
        unit="percentunit",
        series="{series}",
        thresholds=SHARE,
        link=FROM_LINE if by == "rank" else None,
        key=key,
        empty="no verdicts in this time range",
    )
