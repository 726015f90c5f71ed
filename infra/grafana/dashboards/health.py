"""Pipeline health: does everything arrive, in time, and complete? As far as rows in ClickHouse show it."""

from __future__ import annotations

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.dashboards.status import faults, stat
from drumline.infra.grafana.dashboards.verdict_panels import KEY_COLUMNS, KEY_FIELDS, KEYS, TO_RANK
from drumline.infra.grafana.liveness import RANKS
from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY, LAG, SILENT
from drumline.infra.grafana.variables import JOBS, LABELLED

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
                SELECT $__timeInterval(minute) AS time, job, topic IN ('gpu.kernel.v1', 'gpu.kernel-frequency.v1') AS
                    of_kernels, maxIf(last_published, topic IN ('gpu.kernel.v1', 'gpu.step.v1') AND rows > 0) AS raw,
                    maxIf(last_published, topic IN ('gpu.kernel-frequency.v1', 'gpu.lateness.v1')) AS results
                FROM records_per_minute WHERE {_WHERE} AND topic IN ('gpu.kernel.v1', 'gpu.kernel-frequency.v1',
                    'gpu.step.v1', 'gpu.lateness.v1') GROUP BY time, job, of_kernels
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
SILENCE = Panel(
    "table",
    "Silent ranks",
    "Ranks of active jobs whose process has not reported for longer than the alert's limit, and what was recorded "
    "of it then. Left out: processes that reported their end, and replays.",
    PanelQuery(
        f"""
        SELECT job, run, rank, host, reported, last_report, silent_s, {KEYS} FROM ({RANKS})
        WHERE silent_s > {SILENT[0][0]:g} AND @jobs ORDER BY silent_s DESC LIMIT 500
        """,
        f"job:s run:s rank:n host:s reported:s last_report:t silent_s:n {KEY_COLUMNS}",
        "table",
    ),
    unit="none",
    width=24,
    height=5,
    key="silent",
    fields={
        "job": Field(width=160),
        "run": Field(width=170),
        "rank": Field(link=TO_RANK),
        "host": Field(width=160),
        "reported": Field(width=250, fills=True),
        "silent_s": Field("s", "Silent for", thresholds=SILENT),
        **KEY_FIELDS,
    },
    empty="no rank is silent",
)
COLLECTING = Panel(
    "table",
    "Cost of collecting",
    "Processes that reported in this time range, those with problems and losses first: what is recorded of each and "
    "why, shares of a core taken beside the job and in it, bytes sent to Kafka, rows lost. Replays: -.",
    PanelQuery(
        f"""
        SELECT job, rank, policy, toFloat64OrNull(collector['decoder_cpu_s']) / alive_s AS beside,
            toFloat64OrNull(collector['job_thread_cpu_s']) / alive_s AS inside,
            toUInt64OrNull(collector['spool_bytes']) AS bytes,
            toUInt64OrNull(collector['records_dropped']) + toUInt64OrZero(collector['spool_dropped']) AS lost,
            arrayStringConcat(mapValues(mapFilter((name, text) -> startsWith(name, 'problem'), collector)), ', ')
                AS problems, nullIf(toFloat64OrNull(collector['decoder_s']), 0) AS alive_s,
            {KEYS}
        FROM processes AS p WHERE @jobs AND p.published >= $__fromTime_ms AND start <= $__toTime_ms
        ORDER BY problems != '' DESC, lost DESC NULLS LAST, inside DESC NULLS LAST, rank LIMIT 200
        """,
        f"job:s rank:n policy:s beside:n inside:n bytes:n lost:n problems:s alive_s:n {KEY_COLUMNS}",
        "table",
    ),
    unit="short",
    width=24,
    fields={
        "job": Field(width=160),
        "rank": Field("none", link=TO_RANK),
        "policy": Field(header="Recorded", width=200),
        "beside": Field("percentunit", "CPU of the decoder", decimals=1),
        "inside": Field("percentunit", "CPU in the job", decimals=2),
        "bytes": Field("bytes", "To Kafka"),
        "lost": Field(header="Rows lost", thresholds=ANY),
        "problems": Field(width=250, fills=True, inspect=True),
        "alive_s": Field(hidden=True),
        **KEY_FIELDS,
    },
    empty="no process reported in this time range",
)
ERRORS = Panel(
    "table",
    "Dead letters by reason",
    "Records that could not be read or stored, by kind of error. `drumline dlq show TOPIC` has the full texts.",
    PanelQuery(
        """
        SELECT topic, error, count() AS records, max(l.published) AS last FROM ledger AS l
        WHERE @published AND disposition = 'dead_letter' GROUP BY topic, error ORDER BY records DESC LIMIT 200
        """,
        "topic:s error:s records:n last:t",
        "table",
    ),
    unit="none",
    fields={"topic": Field(width=180), "error": Field(width=200, fills=True)},
    empty="no dead letters",
)
STORAGE = Panel(
    "table",
    "Storage",
    "Tables of the database: rows, size on disk, bytes a row, parts (merges keep them few).",
    PanelQuery(
        """
        SELECT table, sum(p.rows) AS rows, sum(bytes_on_disk) AS disk, disk / greatest(rows, 1) AS bytes_per_row,
            count() AS parts,
            max(modification_time) AS written
        FROM system.parts AS p WHERE database = currentDatabase() AND active
            AND modification_time <= $__toTime + INTERVAL 400 DAY
        GROUP BY table ORDER BY disk DESC
        """,
        "table:s rows:n disk:n bytes_per_row:n parts:n written:t",
        "table",
    ),
    unit="short",
    fields={
        "table": Field(width=190, fills=True),
        "disk": Field("bytes", "On disk"),
        "bytes_per_row": Field("bytes", "A row", decimals=1),
    },
    empty="no tables",
)

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
