"""Pipeline health: does everything arrive, in time, and complete? As far as rows in ClickHouse show it."""

from __future__ import annotations

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.dashboards.health_tables import COLLECTING, ERRORS, SILENCE, STORAGE
from drumline.infra.grafana.dashboards.status import faults, stat
from drumline.infra.grafana.liveness import RANKS
from drumline.infra.grafana.model import Dashboard, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY, LAG, SILENT
from drumline.infra.grafana.variables import JOBS, LABELLED
from drumline.schemas.topics import Topic

_WHERE = "@jobs AND @minute"


def _by_topic(title: str, description: str, value: str, unit: str) -> Panel:
    return Panel(
        "timeseries",
        title,
        description,
        PanelQuery(
            f"""
            SELECT $__timeInterval(minute) AS time, topic, {value} AS value
            FROM records_per_minute AS r WHERE {_WHERE} GROUP BY time, topic ORDER BY time, topic
            """,
            "time:t topic:s value:n",
        ),
        unit,
        series="{topic}",
        min_interval="1m",
    )


def _lost(title: str, description: str, value: str, key: str, empty: str) -> Panel:
    """Return red bars where a topic lost something."""
    return Panel(
        "timeseries",
        title,
        f"{description} Any is an alert.",
        PanelQuery(
            f"""
            SELECT $__timeInterval(minute) AS time, topic, {value} AS value
            FROM records_per_minute AS r WHERE {_WHERE} GROUP BY time, topic HAVING value > 0 ORDER BY time, topic
            """,
            "time:t topic:s value:n",
        ),
        series="{topic}",
        min_interval="1m",
        thresholds=ANY,
        marks=True,
        bars=True,
        height=6,
        key=key,
        empty=empty,
    )


_SUM = f"SELECT {{}} AS value FROM records_per_minute AS r WHERE {_WHERE}"
NUMBERS = (
    stat("Rows stored", "Rows of all topics.", _SUM.format("sum(r.rows)")),
    faults("Rows dropped", "Rows that producers lost.", _SUM.format("sum(r.dropped_rows)")),
    faults("Dead letters", "Records that could not be read or stored.", _SUM.format("sum(r.dead_letters)")),
    stat("Duplicates", "Records that came twice and were stored once.", _SUM.format("sum(r.duplicates)")),
    faults(
        "Ranks silent",
        "Ranks of active jobs without a report of their process.",
        f"SELECT countIf(silent_s > {SILENT[0][0]:g} AND @jobs) AS value FROM ({RANKS})",
    ),
    stat(
        "Last data",
        "Time since the broker got the newest record, at the end of this time range.",
        f"SELECT if(count() = 0, NULL, greatest(dateDiff('second', max(r.last_published), $__toTime_ms), 0)) AS value "
        f"FROM records_per_minute AS r WHERE {_WHERE}",
        "s",
        decimals=0,
        empty="no data",
    ),
)
LAGGING = Panel(
    "timeseries",
    "Results behind raw rows",
    "Kernels that are stored against the newest rolling windows made of them, and steps against their comparison by "
    "rank, by the broker's clock; the ten jobs that are most behind. Line: the alert's limit.",
    PanelQuery(
        worst(
            f"""
            SELECT time, job AS member, max(greatest(dateDiff('second', results, raw), 0)) AS v FROM (
                SELECT $__timeInterval(minute) AS time, job, topic IN ('{Topic.KERNEL}', '{Topic.KERNEL_FREQUENCY}') AS
                    of_kernels, maxIf(last_published, topic IN ('{Topic.KERNEL}', '{Topic.STEP}') AND rows > 0) AS raw,
                    maxIf(last_published, topic IN ('{Topic.KERNEL_FREQUENCY}', '{Topic.LATENESS}')) AS results
                FROM records_per_minute WHERE {_WHERE} AND topic IN ('{Topic.KERNEL}', '{Topic.KERNEL_FREQUENCY}',
                    '{Topic.STEP}', '{Topic.LATENESS}') GROUP BY time, job, of_kernels
                HAVING toUnixTimestamp(raw) > 0 AND toUnixTimestamp(results) > 0
            ) GROUP BY time, job
            """,
            "behind", bands=False,
        ),
        "time:t series:s member:s behind:n",
    ),
    series="{series}",
    unit="s",
    thresholds=LAG,
    min_interval="1m",
    key="lag",
)  # fmt: skip
HEALTH = Dashboard(
    "drumline-health",
    "Pipeline health",
    "Does everything arrive, in time, and complete? As far as rows in ClickHouse show it; the programs' metrics are in "
    "docs/reference/metrics.md.",
    "pipeline",
    (
        NUMBERS,
        (
            _by_topic(
                "Rows by topic",
                "Rows stored per second, by the broker's clock.",
                "sum(r.rows) / $__interval_s",
                "rowsps",
            ),
            _by_topic(
                "Records by topic",
                "Kafka records per second; empty ones report that nothing happened.",
                "sum(r.records) / $__interval_s",
                "ops",
            ),
        ),
        (
            LAGGING,
            _by_topic(
                "Delay of publication",
                "From the newest event in a minute's records to the broker: collecting, spooling, sending. Replays "
                "of old time show their age.",
                "greatest(dateDiff('millisecond', max(r.time_max), max(r.last_published)), 0) * "
                "(toUnixTimestamp(max(r.time_max)) > 0)",
                "ms",
            ),
        ),
        (
            _lost(
                "Rows dropped by topic",
                "Rows that producers lost because a buffer or spool was full.",
                "sum(r.dropped_rows)",
                "drops",
                "no row was dropped",
            ),
            _lost(
                "Dead letters by topic",
                "Records that could not be read.",
                "sum(r.dead_letters)",
                "dead",
                "no dead letters",
            ),
        ),
        (SILENCE,),
        (COLLECTING,),
        (ERRORS, STORAGE),
    ),
    (
        *LABELLED,
        JOBS,
    ),
    start="now-6h",
)
