"""Job: how does one training job run, and which rank holds it back?"""

from __future__ import annotations

from drumline.infra.clickhouse.coverage import MOST_MISSING, UNREPORTED, recent
from drumline.infra.grafana.bands import BAND_COLUMNS, banded, worst
from drumline.infra.grafana.dashboards.status import faults, in_sql, stat
from drumline.infra.grafana.dashboards.verdict_panels import FROM_LINE, late_ranks, lost_share
from drumline.infra.grafana.liveness import HUNG_RANKS, PLACE
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY, LEVEL, LEVEL_HUNG, LOST, SHARE
from drumline.infra.grafana.tokens import STEP_PARTS
from drumline.infra.grafana.variables import JOB, LABELLED, MARKS, RUN
from drumline.infra.guidance.causes import CAUSES, INSUFFICIENT_DATA, WITHOUT_WINDOWS
from drumline.infra.guidance.hangs import HANGS
from drumline.schemas.topics import Topic

#: Median, p95 and p99 of the lengths of steps.
_QUANTILES = "quantilesDDIfMerge(0.01, 0.5, 0.95, 0.99)(durations)"
NUMBERS = (
    stat(
        "Level",
        "Highest level in force of any rank, after the last window in this time range; hung where the job is at its "
        "end.",
        f"""
        SELECT if((SELECT count() FROM ({HUNG_RANKS}) WHERE @job AND @run) > 0, {LEVEL_HUNG}, max(level)) AS value
        FROM (
            SELECT argMaxIf(@level, window_end, @evaluated) AS level FROM stragglers WHERE @job AND @run
                AND @window GROUP BY run, rank
        )
        """,
        "none",
        limits=LEVEL,
        levels=True,
    ),
    stat(
        "Lost now",
        "Share of the job's time lost to its most expensive rank in the last window.",
        """
        SELECT max(share) AS value FROM (
            SELECT argMaxIf(lost_share, window_end, @evaluated) AS share FROM stragglers WHERE @job AND @run
                AND @window GROUP BY run, rank
        )
        """,
        "percentunit",
        limits=SHARE,
    ),
    stat(
        "Step time",
        "Median over all steps and ranks, within 1 %. On the GPU, from the end of a step's last collective to that of "
        "the next's; the host's time of the step where it has no collectives.",
        f"SELECT {_QUANTILES}[1] AS value FROM steps_per_second WHERE @job AND @run AND @second",
        "ns",
    ),
    stat(
        "Ranks",
        "Ranks that finished steps.",
        f"""
        SELECT sum(n) AS value FROM (
            SELECT uniqExactIfMerge(ranks) AS n FROM records_per_minute
            WHERE @job AND @run AND @minute AND topic = '{Topic.STEP}' GROUP BY run
        )
        """,
    ),
    stat(
        "GPU time lost",
        "GPU time spent waiting for what was late.",
        "SELECT sum(gpu_seconds_lost) AS value FROM stragglers WHERE @job AND @run AND @window",
        "s",
        limits=LOST,
    ),
    faults(
        "Rows lost",
        "Rows that producers dropped.",
        "SELECT sum(dropped_rows) AS value FROM records_per_minute WHERE @job AND @run AND @minute",
    ),
)

STEPS = Panel(
    "timeseries",
    "Step time of all ranks",
    "Duration of the steps that began in each interval, the host's where steps have no collectives: the shortest, "
    "median, p95 and longest of all ranks. Ranks run in lockstep, so they hardly differ; what holds them back shows "
    "below.",
    PanelQuery(
        f"""
        SELECT time, lowest, least(greatest(d[1], lowest), highest) AS median,
            least(greatest(d[2], lowest), highest) AS p95, highest
        FROM (
            SELECT $__timeInterval(second) AS time, toFloat64(min(min_ns)) AS lowest, toFloat64(max(max_ns)) AS highest,
                {_QUANTILES} AS d
            FROM steps_per_second WHERE @job AND @run AND @second GROUP BY time HAVING sum(known_steps) > 0
        ) ORDER BY time
        """,
        BAND_COLUMNS,
    ),
    unit="ns",
    min_interval="1s",
    fields={"lowest": Field(header="Shortest"), "highest": Field(header="Longest")},
    key="steps",
    empty="no steps in this time range",
)
_SHARES = ", ".join(f"sum(s.{column}) / sum(s.gpu_duration_ns) AS {name}" for name, column in STEP_PARTS.items())
BUDGET = Panel(
    "timeseries",
    "Where a step's time goes",
    "Shares of step time, mean over the ranks: compute, copies not covered by it, communication not covered by "
    "either, idle.",
    PanelQuery(
        f"""
        SELECT $__timeInterval(second) AS time, {_SHARES}
        FROM steps_per_second AS s WHERE @job AND @run AND @second GROUP BY time HAVING sum(s.gpu_duration_ns) > 0
        ORDER BY time
        """,
        "time:t compute:n copies:n communication:n idle:n",
    ),
    unit="percentunit",
    maximum=1,
    stacked=True,
    min_interval="1s",
    empty="no steps in this time range",
)
BUSY = Panel(
    "timeseries",
    "Kernel time by rank",
    "Kernel seconds per second. Above 1 where kernels overlap; NCCL kernels that wait count too, so a late rank has "
    "the least. The ten ranks with the least, beside all.",
    PanelQuery(
        worst(
            """
            SELECT $__timeInterval(second) AS time, toString(rank) AS member, sum(gpu_ns) / 1e9 / $__interval_s AS v
            FROM (SELECT second, rank, gpu_ns FROM ranks_per_second WHERE @job AND @run AND @second)
            GROUP BY time, rank
            """,
            "kernel_time", by="-avg(v)", prefix="rank ",
        ),
        "time:t series:s member:s kernel_time:n",
    ),
    unit="percentunit",
    series="{series}",
    min_interval="1s",
    link=FROM_LINE,
)  # fmt: skip
LAUNCHES = Panel(
    "timeseries",
    "Kernel launches of a rank",
    "Kernels started per second by one rank: the lowest, median, p95 and highest of all.",
    PanelQuery(
        banded(
            """
            SELECT $__timeInterval(second) AS time, rank, sum(launches) / $__interval_s AS v
            FROM (SELECT second, rank, launches FROM ranks_per_second WHERE @job AND @run AND @second)
            GROUP BY time, rank
            """
        ),
        BAND_COLUMNS,
    ),
    unit="ops",
    min_interval="1s",
)
FAMILIES = Panel(
    "timeseries",
    "GPU time by kernel family",
    "GPUs busy with each family of kernels, all ranks together: GPU seconds per second.",
    PanelQuery(
        """
        SELECT $__timeInterval(minute) AS time, family, sum(gpu) / 1e9 / $__interval_s AS gpu_time FROM (
            SELECT minute, name, sum(gpu_ns) AS gpu FROM kernels_per_minute WHERE @job AND @run AND @minute
                GROUP BY minute, name
        ) AS k LEFT JOIN kernel_names AS n ON k.name = n.name
        GROUP BY time, family ORDER BY time, family
        """,
        "time:t family:s gpu_time:n",
    ),
    unit="suffix:GPUs",
    decimals=1,
    series="{family}",
    stacked=True,
    min_interval="1m",
)
PLACES = Panel(
    "table",
    "Where its ranks run",
    "Host, GPU, process and versions of each rank.",
    PanelQuery(
        f"""
        SELECT rank, host, gpu_index AS gpu, gpu_model AS model, pid, {PLACE} AS placed,
            arrayStringConcat(arrayMap((k, v) -> concat(k, ' ', v), mapKeys(versions), mapValues(versions)), ',
                ') AS versions, start AS since
        FROM processes WHERE @job AND @run AND start <= $__toTime_ms ORDER BY since DESC, rank LIMIT 2000
        """,
        "rank:n host:s gpu:n model:s pid:n placed:s versions:s since:t",
        "table",
    ),
    unit="none",
    width=24,
    fields={
        "rank": Field(link=Link("This rank", "drumline-rank", {"rank": "${__data.fields.rank}"}), decimals=0),
        "host": Field(width=140),
        "model": Field(header="GPU model", width=150),
        "placed": Field(header="Pod or Slurm job", width=200),
        "versions": Field(width=360, fills=True, inspect=True),
    },
    empty="no process of this job is known",
)
_ENTRIES = [entry for entry in (*CAUSES, *WITHOUT_WINDOWS) if entry.cause == INSUFFICIENT_DATA]
_DETAILS = in_sql(entry.detail for entry in _ENTRIES)
COVERAGE = Panel(
    "table",
    "Why drumline cannot judge this job",
    "Windows of steps without verdicts at the end of this time range: of its last 15 minutes, or of ten windows where "
    "those are longer; and ranks that never reported. Below 90 % with verdicts, or with no known step, an alert fires.",
    PanelQuery(
        f"""
        SELECT run, windows, if(windows = 0, 1, 1 - evaluated / windows) AS missing, unreported_ranks AS unreported,
            {in_sql(e.meaning for e in _ENTRIES)}[at] AS meaning,
            {in_sql(e.check for e in _ENTRIES)}[at] AS check, {in_sql(e.act for e in _ENTRIES)}[at] AS action
        FROM (
            SELECT run, windows, evaluated, unreported_ranks, indexOf({_DETAILS}, reason) AS at
            FROM ({recent("@job AND @run", "$__toTime_ms", "@minute")}) AS c
            LEFT JOIN (SELECT job, run, {UNREPORTED} FROM processes WHERE @job AND @run GROUP BY job, run) AS p
            USING (job, run) WHERE reason != '' OR unreported_ranks > 0
        ) ORDER BY run DESC LIMIT 20
        """,
        "run:s windows:n missing:n unreported:n meaning:s check:s action:s",
        "table",
    ),
    unit="none",
    width=24,
    height=4,
    fields={
        "windows": Field(width=90),
        "missing": Field("percentunit", "Without verdict", width=120, thresholds=((MOST_MISSING, "orange"),)),
        "unreported": Field(header="Ranks that never reported", width=120, thresholds=ANY),
        "meaning": Field(width=250, wraps=True),
        "check": Field(width=250, wraps=True),
        "action": Field(header="What to do", width=300, fills=True, wraps=True),
    },
    key="coverage",
    empty="every window of steps has verdicts, and each rank reported",
)
_STATES = {-2: "over", -1: "moving", 0: "standing", 1: "hung"}
_REASONS = in_sql(entry.detail for entry in HANGS)
_ACTS = in_sql(["", *(entry.act for entry in HANGS)])
HANGS_TABLE = Panel(
    "table",
    "Times at which the job stood still",
    "States of each: standing after 10 s, hung when ranks have waited for DRUMLINE_STREAM__HUNG_S, moving or over at "
    "its end. Named are the ranks that the others wait for.",
    PanelQuery(
        f"""
        SELECT h.time AS at,
            transform(CAST(h.state, 'String'), {list(_STATES.values())}, {list(_STATES)}, -1) AS state,
            if(h.rank < 0, 'all', toString(h.rank)) AS rank, h.host AS host, replaceAll(h.reason, '_', ' ') AS reason,
            h.operation AS operation, h.note AS note, {_ACTS}[1 + indexOf({_REASONS}, h.reason)] AS action
        FROM hangs AS h WHERE @job AND @run AND h.time >= $__fromTime_ms AND h.time <= $__toTime_ms
        ORDER BY h.time DESC, h.rank LIMIT 500
        """,
        "at:t state:n rank:s host:s reason:s operation:s note:s action:s",
        "table",
    ),
    unit="none",
    width=24,
    fields={
        "at": Field(header="Time"),
        "state": Field(thresholds=ANY, texts=_STATES),
        "rank": Field(width=70),
        "reason": Field(width=120),
        "note": Field(width=250, wraps=True),
        "action": Field(
            header="What to do", width=300, fills=True, wraps=True,
        ),
    },
    key="hangs",
    empty="the job did not stand still in this time range",
)  # fmt: skip

JOB_BOARD = Dashboard(
    "drumline-job",
    "Job",
    "How does one training job run, and which rank holds it back?",
    "job",
    (
        NUMBERS,
        (late_ranks("@job AND @run"),),
        (STEPS, BUDGET),
        (lost_share("@job AND @run AND rank >= 0"), BUSY),
        (LAUNCHES, FAMILIES),
        (COVERAGE,),
        (HANGS_TABLE,),
        (PLACES,),
    ),
    (*LABELLED, JOB, RUN),
    MARKS,
)
