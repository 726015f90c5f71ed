"""Pipeline health: does everything arrive, in time, and complete? As far as rows in ClickHouse show it."""

from __future__ import annotations

from drumline.infra.grafana.dashboards.verdict_panels import KEY_COLUMNS, KEY_FIELDS, KEYS, TO_RANK
from drumline.infra.grafana.liveness import RANKS
from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY, LAG, SILENT
from drumline.infra.grafana.variables import JOBS

_WHERE = "@jobs AND @minute"


def _by_topic(title: str, description: str, value: str, unit: str, key: str = "", alarm: bool = False) -> Panel:
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
        min_interval="1m",
        thresholds=ANY if alarm else (),
        bars=alarm,
        key=key,
    )


LAGGING = Panel(
    "timeseries",
    "Results behind raw rows",
    "Kernels that are stored against the newest rolling windows made of them, both by the broker's clock. Line: the "
    "alert's limit.",
    PanelQuery(
        f"""
        SELECT time, job, greatest(dateDiff('second', results, raw), 0) AS behind FROM (
            SELECT $__timeInterval(minute) AS time, job, maxIf(last_published, topic = 'gpu.kernel.v1'
                AND rows > 0) AS raw,
                maxIf(last_published, topic = 'gpu.kernel-frequency.v1') AS results
            FROM records_per_minute WHERE {_WHERE} GROUP BY time, job
            HAVING toUnixTimestamp(raw) > 0 AND toUnixTimestamp(results) > 0
        ) ORDER BY time, job
        """,
        "time:t job:s behind:n",
    ),
    unit="s",
    thresholds=LAG,
    min_interval="1m",
    key="lag",
)
SILENCE = Panel(
    "table",
    "Silent ranks",
    "Ranks of active jobs whose process has not reported for longer than the alert's limit; `reported`: what was "
    "recorded of it then. Left out: processes that reported their end, and replays.",
    PanelQuery(
        f"""
        SELECT job, run, rank, host, reported, last_report, silent_s, {KEYS} FROM ({RANKS})
        WHERE silent_s > {SILENT[0][0]:g} AND @jobs ORDER BY silent_s DESC LIMIT 500
        """,
        f"job:s run:s rank:n host:s reported:s last_report:t silent_s:n {KEY_COLUMNS}",
        "table",
    ),
    unit="none",
    key="silent",
    fields={
        "silent_s": Field("s", thresholds=SILENT),
        "rank": Field(link=TO_RANK),
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
        SELECT job, run, rank, policy, toFloat64OrNull(collector['decoder_cpu_s']) / alive_s AS beside,
            toFloat64OrNull(collector['job_thread_cpu_s']) / alive_s AS inside,
            toUInt64OrNull(collector['kernels']) AS kernels, toUInt64OrNull(collector['spool_bytes']) AS bytes,
            toUInt64OrNull(collector['records_dropped']) + toUInt64OrZero(collector['spool_dropped']) AS lost,
            arrayStringConcat(mapValues(mapFilter((name, text) -> startsWith(name, 'problem'), collector)), ', ')
                AS problems, nullIf(toFloat64OrNull(collector['decoder_s']), 0) AS alive_s,
            {KEYS}
        FROM processes AS p WHERE @jobs AND p.published >= $__fromTime_ms AND start <= $__toTime_ms
        ORDER BY problems != '' DESC, lost DESC NULLS LAST, inside DESC NULLS LAST, rank LIMIT 200
        """,
        f"job:s run:s rank:n policy:s beside:n inside:n kernels:n bytes:n lost:n problems:s alive_s:n {KEY_COLUMNS}",
        "table",
    ),
    unit="short",
    width=24,
    fields={
        "rank": Field(link=TO_RANK),
        "beside": Field("percentunit", decimals=1),
        "inside": Field("percentunit", decimals=2),
        "bytes": Field("bytes"),
        "lost": Field(thresholds=ANY),
        "problems": Field(inspect=True),
        "alive_s": Field("s"),
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
    fields={"disk": Field("bytes"), "bytes_per_row": Field("bytes", decimals=1)},
    empty="no tables",
)

HEALTH = Dashboard(
    "drumline-health",
    "Pipeline health",
    "Does everything arrive, in time, and complete? As far as rows in ClickHouse show it; the programs' metrics are in "
    "docs/reference/metrics.md.",
    "pipeline",
    (
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
            _by_topic(
                "Rows dropped",
                "Rows that producers lost because a buffer or spool was full. Any is an alert.",
                "sum(r.dropped_rows)",
                "short",
                "drops",
                True,
            ),
            _by_topic(
                "Dead letters",
                "Records that could not be read. Any is an alert.",
                "sum(r.dead_letters)",
                "short",
                "dead",
                True,
            ),
        ),
        (
            _by_topic(
                "Duplicates",
                "Records that were published twice and stored once: restarts of agents.",
                "sum(r.duplicates)",
                "short",
            ),
            SILENCE,
        ),
        (COLLECTING,),
        (ERRORS, STORAGE),
    ),
    (JOBS,),
    start="now-6h",
)
