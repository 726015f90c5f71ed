"""Fleet: which job, which rank, which host needs attention now?"""

from __future__ import annotations

from drumline.infra.grafana.dashboards.verdict_panels import (
    KEY_COLUMNS,
    KEY_FIELDS,
    KEYS,
    TO_JOB,
    TO_STRAGGLERS,
    late_ranks,
    lost_share,
)
from drumline.infra.grafana.liveness import ACTIVE_RUNS
from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ACTIVE_S, ANY, LEVEL, SHARE, THROTTLED_BITS
from drumline.infra.grafana.variables import MARKS_OF_ALL

_RUNS = "FROM records_per_minute WHERE @minute AND job != ''"


def _stat(
    title: str, description: str, query: str, unit: str = "short", red: bool = False, empty: str = "none"
) -> Panel:
    return Panel(
        "stat",
        title,
        description,
        PanelQuery(query, "value:n", "table"),
        unit,
        width=4,
        height=4,
        thresholds=ANY if red else (),
        empty=empty,
    )


NUMBERS = (
    _stat("Runs", "Starts of jobs that sent anything.", f"SELECT uniqExact(job, run) AS value {_RUNS} AND run != ''"),
    _stat(
        "Ranks",
        "Ranks that sent anything, over all runs.",
        f"SELECT sum(n) AS value FROM (SELECT uniqExactIfMerge(ranks) AS n {_RUNS} AND run != '' GROUP BY job, run)",
    ),
    _stat(
        "Ranks late now",
        "Ranks whose last verdict in this time range is a warning or critical, of jobs that are active at its end.",
        f"""
        SELECT countIf(level >= 2) AS value FROM (
            SELECT argMaxIf(@level, window_end, @evaluated) AS level FROM stragglers
            WHERE (job, run) IN ({ACTIVE_RUNS}) AND @window AND rank >= 0 GROUP BY job, run, rank
        )
        """,
        red=True,
    ),
    _stat(
        "GPU time lost",
        "GPU time that ranks spent waiting for late ones, slow links or changed jobs.",
        "SELECT sum(gpu_seconds_lost) AS value FROM stragglers WHERE @window",
        "s",
    ),
    _stat(
        "Rows lost",
        "Rows that producers dropped because a buffer or spool was full.",
        f"SELECT sum(dropped_rows) AS value {_RUNS}",
        red=True,
    ),
    _stat(
        "GPUs throttled",
        "GPUs that were slowed down by heat or a power fault, not by their power cap.",
        f"SELECT uniqExactIf(gpu_uuid, bitAnd(throttle_reasons, {THROTTLED_BITS}) != 0) AS value FROM "
        f"devices_per_minute WHERE @minute",
        red=True,
    ),
)

JOBS = Panel(
    "table",
    "Jobs",
    "Every run with data: size, its worst level in force and what its most expensive rank costs now (none where the "
    "run is not active any more), rows that were lost.",
    PanelQuery(
        f"""
        SELECT job, run, ranks, hosts,
            if(last_record > $__toTime_ms - INTERVAL {ACTIVE_S} SECOND, last_level, NULL) AS level,
            if(isNull(level), NULL, share) AS lost_share, gpu_seconds_lost, rows, dropped_rows, last_record,
            {KEYS} FROM (
            SELECT job, run, uniqExactIfMerge(r.ranks) AS ranks, uniqExactIfMerge(r.hosts) AS hosts,
                sum(r.rows) AS rows,
                sum(r.dropped_rows) AS dropped_rows,
                toDateTime64(maxIf(r.last_published, @produced), 3, 'UTC') AS last_record
            FROM records_per_minute AS r WHERE @minute AND job != '' AND run != '' GROUP BY job, run
        ) AS active_runs LEFT JOIN (
            SELECT job, run, max(level_rank) AS last_level, max(last_share) AS share, sum(lost)
                AS gpu_seconds_lost FROM (
                SELECT job, run, argMaxIf(@level, window_end, @evaluated) AS level_rank,
                    argMaxIf(s.lost_share, window_end, @evaluated) AS last_share,
                    sum(s.gpu_seconds_lost) AS lost
                FROM stragglers AS s WHERE @window GROUP BY job, run, rank
            ) GROUP BY job, run
        ) AS verdicts USING (job, run)
        ORDER BY level DESC, lost_share DESC, last_record DESC LIMIT 200
        """,
        "job:s run:s ranks:n hosts:n level:n lost_share:n gpu_seconds_lost:n rows:n dropped_rows:n last_record:t "
        f"{KEY_COLUMNS}",
        "table",
    ),
    unit="short",
    width=24,
    fields={
        "job": Field(link=TO_JOB),
        "level": Field(levels=True, link=TO_STRAGGLERS, thresholds=LEVEL),
        "lost_share": Field("percentunit", thresholds=SHARE, decimals=1),
        "gpu_seconds_lost": Field("s", decimals=1),
        "dropped_rows": Field(thresholds=ANY),
        **KEY_FIELDS,
    },
    empty="no data of any job",
)

LAUNCHES = Panel(
    "timeseries",
    "Kernel launches",
    "Kernels started per second, all ranks of a job together.",
    PanelQuery(
        """
        SELECT $__timeInterval(second) AS time, job, sum(launches) / $__interval_s AS launches
        FROM ranks_per_second WHERE @second GROUP BY time, job ORDER BY time, job
        """,
        "time:t job:s launches:n",
    ),
    unit="ops",
    min_interval="10s",
)
UTILISATION = Panel(
    "timeseries",
    "GPU utilisation by host",
    "As NVML reports it: share of time with any kernel running, mean over the host's GPUs. It does not measure how "
    "well they ran.",
    PanelQuery(
        """
        SELECT $__timeInterval(minute) AS time, host, avgMerge(util_gpu) AS utilisation
        FROM devices_per_minute WHERE @minute GROUP BY time, host ORDER BY time, host
        """,
        "time:t host:s utilisation:n",
    ),
    unit="percent",
    maximum=100,
    min_interval="1m",
)
POWER = Panel(
    "timeseries",
    "Power by host",
    "Sum over the host's GPUs of their mean power. A GPU shared by jobs counts once.",
    PanelQuery(
        """
        SELECT time, host, sum(watts) AS watts FROM (
            SELECT $__timeInterval(minute) AS time, host, gpu_uuid, avgMerge(power_mw) / 1000 AS watts
            FROM devices_per_minute WHERE @minute GROUP BY time, host, gpu_uuid
        ) GROUP BY time, host ORDER BY time, host
        """,
        "time:t host:s watts:n",
    ),
    unit="watt",
    min_interval="1m",
)
ALERTS = Panel(
    "alertlist",
    "Alerts",
    "Rules of the folder drumline that fire or are about to.",
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
    (NUMBERS, (JOBS,), (late_ranks("1"),), (lost_share("1", "job"), LAUNCHES), (UTILISATION, POWER), (ALERTS,)),
    annotations=MARKS_OF_ALL,
    start="now-6h",
    refresh="1m",
)
