"""Fleet: which job, which rank, which host needs attention now?"""

from __future__ import annotations

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.dashboards.status import faults, stat
from drumline.infra.grafana.dashboards.verdict_panels import (
    KEY_COLUMNS,
    KEY_FIELDS,
    KEYS,
    TO_JOB,
    TO_STRAGGLERS,
    late_ranks,
    lost_share,
)
from drumline.infra.grafana.liveness import ACTIVE_RUNS, HUNG_RANKS
from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ACTIVE_S, ANY, LEVEL, LEVEL_HUNG, LOST, SHARE
from drumline.infra.grafana.variables import HOSTS, JOBS, LABELLED, MARKS_OF_JOBS
from drumline.schemas.counters import CLOCK_FAULT_BITS

_RUNS = "FROM records_per_minute WHERE @minute AND job != '' AND @jobs AND @placed"

NUMBERS = (
    stat("Runs", "Starts of jobs that sent anything.", f"SELECT uniqExact(job, run) AS value {_RUNS} AND run != ''"),
    stat(
        "Ranks",
        "Ranks that sent kernels, steps or progress, over all runs.",
        f"SELECT sum(n) AS value FROM (SELECT uniqExactIfMerge(ranks) AS n {_RUNS} AND run != '' GROUP BY job, run)",
    ),
    faults(
        "Ranks late now",
        "Ranks whose last verdict in this time range is a warning or critical, of jobs that are active at its end.",
        f"""
        SELECT countIf(level >= 2) AS value FROM (
            SELECT argMaxIf(@level, window_end, @evaluated) AS level FROM stragglers
            WHERE (job, run) IN ({ACTIVE_RUNS}) AND @jobs AND @hosts AND @window AND rank >= 0 GROUP BY job, run, rank
        )
        """,
    ),
    stat(
        "GPU time lost",
        "GPU time that ranks spent waiting for late ones, slow links or changed jobs.",
        "SELECT sum(gpu_seconds_lost) AS value FROM stragglers WHERE @jobs AND @hosts AND @window",
        "s",
        limits=LOST,
    ),
    faults(
        "Rows lost",
        "Rows that producers dropped because a buffer or spool was full.",
        f"SELECT sum(dropped_rows) AS value {_RUNS}",
    ),
    faults(
        "GPUs throttled",
        "GPUs that were slowed down by heat or a power fault, not by their power cap.",
        f"SELECT uniqExactIf(gpu_uuid, bitAnd(throttle_reasons, {CLOCK_FAULT_BITS}) != 0) AS value FROM "
        f"devices_per_minute WHERE @jobs AND @hosts AND @minute",
    ),
)

RUNS = Panel(
    "table",
    "Jobs",
    "Every run with data: its worst level in force and what its most expensive rank costs now (none where the "
    "run is not active any more), GPU time and rows that were lost.",
    PanelQuery(
        f"""
        SELECT job, run, ranks,
            multiIf((job, run) IN (SELECT job, run FROM ({HUNG_RANKS})), {LEVEL_HUNG},
                last_record > $__toTime_ms - INTERVAL {ACTIVE_S} SECOND, last_level, NULL) AS level,
            if(isNull(level), NULL, share) AS lost_share, gpu_seconds_lost, dropped_rows, last_record,
            {KEYS} FROM (
            SELECT job, run, uniqExactIfMerge(r.ranks) AS ranks,
                sum(r.dropped_rows) AS dropped_rows,
                toDateTime64(maxIf(r.last_published, @produced), 3, 'UTC') AS last_record
            FROM records_per_minute AS r WHERE @minute AND job != '' AND run != '' AND @jobs AND @placed
            GROUP BY job, run
        ) AS active_runs LEFT JOIN (
            SELECT job, run, max(level_rank) AS last_level, max(last_share) AS share, sum(lost)
                AS gpu_seconds_lost FROM (
                SELECT job, run, argMaxIf(@level, window_end, @evaluated) AS level_rank,
                    argMaxIf(s.lost_share, window_end, @evaluated) AS last_share,
                    sum(s.gpu_seconds_lost) AS lost
                FROM stragglers AS s WHERE @jobs AND @window GROUP BY job, run, rank
            ) GROUP BY job, run
        ) AS verdicts USING (job, run)
        ORDER BY level DESC, lost_share DESC, last_record DESC LIMIT 200
        """,
        f"job:s run:s ranks:n level:n lost_share:n gpu_seconds_lost:n dropped_rows:n last_record:t {KEY_COLUMNS}",
        "table",
    ),
    unit="short",
    width=16,
    fields={
        "job": Field(link=TO_JOB),
        "run": Field(width=150),
        "level": Field(header="Level now", width=90, levels=True, link=TO_STRAGGLERS, thresholds=LEVEL),
        "lost_share": Field("percentunit", "Time lost", thresholds=SHARE, decimals=1),
        "gpu_seconds_lost": Field("s", "GPU time lost", decimals=1, thresholds=LOST),
        "dropped_rows": Field(header="Rows lost", thresholds=ANY),
        "last_record": Field(header="Last data"),
        **KEY_FIELDS,
    },
    empty="no data of any job",
)

LAUNCHES = Panel(
    "timeseries",
    "Kernel launches by job",
    "Kernels started per second, all ranks of a job together. The ten jobs with most of them.",
    PanelQuery(
        worst(
            """
            SELECT $__timeInterval(second) AS time, job AS member, sum(launches) / $__interval_s AS v
            FROM ranks_per_second WHERE @jobs AND @hosts AND @second GROUP BY time, job
            """,
            "launches", by="sum(v)", bands=False,
        ),
        "time:t series:s member:s launches:n",
    ),
    unit="ops",
    series="{series}",
    min_interval="10s",
)  # fmt: skip
UTILISATION = Panel(
    "timeseries",
    "GPU utilisation by host",
    "As NVML reports it: share of time with any kernel running, mean over the host's GPUs. It does not measure how "
    "well they ran. The ten hosts with the least, beside all.",
    PanelQuery(
        worst(
            """
            SELECT $__timeInterval(minute) AS time, host AS member, avgMerge(util_gpu) AS v
            FROM devices_per_minute WHERE @jobs AND @hosts AND @minute GROUP BY time, host
            """,
            "utilisation", by="-avg(v)",
        ),
        "time:t series:s member:s utilisation:n",
    ),
    unit="percent",
    series="{series}",
    maximum=100,
    min_interval="1m",
)  # fmt: skip
POWER = Panel(
    "timeseries",
    "Power by host",
    "Sum over the host's GPUs of their mean power; a GPU shared by jobs counts once. The ten hosts with most, beside "
    "all.",
    PanelQuery(
        worst(
            """
            SELECT time, host AS member, sum(watts) AS v FROM (
                SELECT $__timeInterval(minute) AS time, host, gpu_uuid, avgMerge(power_mw) / 1000 AS watts
                FROM devices_per_minute WHERE @jobs AND @hosts AND @minute GROUP BY time, host, gpu_uuid
            ) GROUP BY time, host
            """,
            "watts", by="avg(v)",
        ),
        "time:t series:s member:s watts:n",
    ),
    unit="watt",
    series="{series}",
    min_interval="1m",
)  # fmt: skip
ALERTS = Panel(
    "alertlist",
    "Alerts",
    "Rules of the folder drumline that fire or are about to.",
    width=8,
    options={
        "viewMode": "list",
        "groupMode": "default",
        "groupBy": [],
        "maxItems": 20,
        "sortOrder": 3,
        "dashboardAlerts": False,
        "alertName": "",
        "alertInstanceLabelFilter": "",
        "folder": {"title": "drumline", "uid": "drumline"},
        "stateFilter": {"firing": True, "pending": True, "noData": False, "normal": False, "error": True},
    },
)

FLEET = Dashboard(
    "drumline-fleet",
    "Fleet",
    "Which job, which rank, which host needs attention now? Start here; every name is a link.",
    "fleet",
    (
        NUMBERS,
        (RUNS, ALERTS),
        (late_ranks("@jobs AND @hosts", job=True),),
        (lost_share("@jobs AND @hosts", "job"), LAUNCHES),
        (UTILISATION, POWER),
    ),
    annotations=MARKS_OF_JOBS,
    variables=(*LABELLED, JOBS, HOSTS),
    start="now-6h",
    refresh="1m",
)
