"""Job: how does one training job run, and which rank holds it back?"""

from __future__ import annotations

from drumline.infra.grafana.dashboards.verdict_panels import late_ranks, lost_share
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY, LEVEL, SHARE
from drumline.infra.grafana.variables import JOB, MARKS, RUN

TO_RANK = Link("This rank", "drumline-rank", {"rank": "${__field.labels.rank}"})


def _stat(
    title: str,
    description: str,
    query: str,
    unit: str,
    limits: tuple[tuple[float, str], ...] = (),
    levels: bool = False,
) -> Panel:
    return Panel(
        "stat",
        title,
        description,
        PanelQuery(query, "value:n", "table"),
        unit,
        width=4,
        height=4,
        thresholds=limits,
        levels=levels,
        decimals=None if unit == "short" else 1,
        empty="none",
    )


NUMBERS = (
    _stat(
        "Level",
        "Highest level in force of any rank, after the last window in this time range.",
        """
        SELECT max(level) AS value FROM (
            SELECT argMaxIf(@level, window_end, @evaluated) AS level FROM stragglers WHERE @job AND @run
                AND @window GROUP BY run, rank
        )
        """,
        "none",
        LEVEL,
        True,
    ),
    _stat(
        "Lost now",
        "Share of the job's time lost to its most expensive rank in the last window.",
        """
        SELECT max(share) AS value FROM (
            SELECT argMaxIf(lost_share, window_end, @evaluated) AS share FROM stragglers WHERE @job AND @run
                AND @window GROUP BY run, rank
        )
        """,
        "percentunit",
        SHARE,
    ),
    _stat(
        "Step time",
        "Median over all steps and ranks. On the GPU, from the end of a step's last collective to that of the next's; "
        "the host's time of the step where it has no collectives.",
        "SELECT quantileExactInclusive(0.5)(gpu_duration_ns) AS value FROM steps WHERE @job AND @run AND @start AND "
        "skipped = 0 AND gpu_duration_ns > 0",
        "ns",
    ),
    _stat(
        "Ranks",
        "Ranks that finished steps.",
        "SELECT uniqExact(run, rank) AS value FROM steps WHERE @job AND @run AND @start",
        "short",
    ),
    _stat(
        "GPU time lost",
        "GPU time spent waiting for what was late.",
        "SELECT sum(gpu_seconds_lost) AS value FROM stragglers WHERE @job AND @run AND @window",
        "s",
    ),
    _stat(
        "Rows lost",
        "Rows that producers dropped.",
        "SELECT sum(dropped_rows) AS value FROM records_per_minute WHERE @job AND @run AND @minute",
        "short",
        ANY,
    ),
)

STEPS = Panel(
    "timeseries",
    "Step time by rank",
    "Mean duration of the steps that began in each interval, the host's where steps have no collectives. Ranks run in "
    "lockstep, so their lines lie on each other; what holds them back shows below.",
    PanelQuery(
        """
        SELECT $__timeInterval_ms(start) AS time, toString(rank) AS rank, avg(gpu_duration_ns) AS step_time
        FROM (SELECT start, rank, gpu_duration_ns FROM steps WHERE @job AND @run AND @start AND skipped = 0)
        GROUP BY time, rank ORDER BY time, rank
        """,
        "time:t rank:s step_time:n",
    ),
    unit="ns",
    min_interval="1s",
    link=TO_RANK,
    key="steps",
    empty="no steps in this time range",
)
_PARTS = {"compute": "compute_ns", "copies": "copy_ns", "communication": "comm_exposed_ns", "idle": "idle_ns"}
_SHARES = ", ".join(f"sum({column}) / sum(gpu_duration_ns) AS {name}" for name, column in _PARTS.items())
BUDGET = Panel(
    "timeseries",
    "Where a step's time goes",
    "Shares of step time, mean over the ranks: compute, copies not covered by it, communication not covered by "
    "either, idle.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(start) AS time, {_SHARES}
        FROM steps WHERE @job AND @run AND @start AND skipped = 0 AND gpu_duration_ns > 0 GROUP BY time ORDER BY time
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
    "the least.",
    PanelQuery(
        """
        SELECT $__timeInterval(second) AS time, toString(rank) AS rank, sum(gpu_ns) / 1e9 / $__interval_s AS kernel_time
        FROM (SELECT second, rank, gpu_ns FROM ranks_per_second WHERE @job AND @run AND @second)
        GROUP BY time, rank ORDER BY time, rank
        """,
        "time:t rank:s kernel_time:n",
    ),
    unit="percentunit",
    min_interval="1s",
    link=TO_RANK,
)
LAUNCHES = Panel(
    "timeseries",
    "Kernel launches by rank",
    "Kernels started per second.",
    PanelQuery(
        """
        SELECT $__timeInterval(second) AS time, toString(rank) AS rank, sum(launches) / $__interval_s AS launches
        FROM (SELECT second, rank, launches FROM ranks_per_second WHERE @job AND @run AND @second)
        GROUP BY time, rank ORDER BY time, rank
        """,
        "time:t rank:s launches:n",
    ),
    unit="ops",
    min_interval="1s",
    link=TO_RANK,
)
FAMILIES = Panel(
    "timeseries",
    "GPU time by kernel family",
    "GPU seconds per second of all ranks, by what kernels do.",
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
    unit="short",
    stacked=True,
    min_interval="1m",
)
PLACES = Panel(
    "table",
    "Ranks",
    "Host, GPU, process and versions of each rank.",
    PanelQuery(
        """
        SELECT rank, host, gpu_index AS gpu, gpu_model AS model, pid, k8s_pod AS pod, slurm_job AS slurm,
            arrayStringConcat(arrayMap((k, v) -> concat(k, ' ', v), mapKeys(versions), mapValues(versions)), ',
                ') AS versions, start AS since
        FROM processes WHERE @job AND @run AND start <= $__toTime_ms ORDER BY since DESC, rank LIMIT 2000
        """,
        "rank:n host:s gpu:n model:s pid:n pod:s slurm:s versions:s since:t",
        "table",
    ),
    unit="none",
    fields={"rank": Field(link=Link("This rank", "drumline-rank", {"rank": "${__data.fields.rank}"}))},
    empty="no process of this job is known",
)

HANGS = Panel(
    "table",
    "Times at which the job stood still",
    "States of each: standing after 10 s, hung when ranks have waited for DRUMLINE_STREAM__HUNG_S, moving or over at "
    "its end. Named are the ranks that the others wait for.",
    PanelQuery(
        """
        SELECT h.time AS at, h.state AS state, CAST(h.state, 'String') = 'hung' AS pages,
            if(h.rank < 0, 'all', toString(h.rank)) AS rank, h.host AS host,
            h.reason AS reason, h.operation AS operation, h.note AS note
        FROM hangs AS h WHERE @job AND @run AND h.time >= $__fromTime_ms AND h.time <= $__toTime_ms
        ORDER BY h.time DESC, h.rank LIMIT 500
        """,
        "at:t state:s pages:n rank:s host:s reason:s operation:s note:s",
        "table",
    ),
    unit="none",
    width=24,
    fields={"pages": Field(thresholds=ANY)},
    key="hangs",
    empty="the job did not stand still in this time range",
)

JOB_BOARD = Dashboard(
    "drumline-job",
    "Job",
    "How does one training job run, and which rank holds it back?",
    "job",
    (
        NUMBERS,
        (STEPS, BUDGET),
        (late_ranks("@job AND @run"),),
        (lost_share("@job AND @run AND rank >= 0"), BUSY),
        (LAUNCHES, FAMILIES),
        (HANGS,),
        (PLACES,),
    ),
    (JOB, RUN),
    MARKS,
)
