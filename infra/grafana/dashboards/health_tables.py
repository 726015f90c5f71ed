"""Tables of the dashboard Pipeline health: silent ranks, cost of collecting, dead letters, storage."""

from __future__ import annotations

from drumline.infra.grafana.dashboards.verdict_panels import KEY_COLUMNS, KEY_FIELDS, KEYS, TO_RANK
from drumline.infra.grafana.liveness import RANKS
from drumline.infra.grafana.model import Field, Panel, PanelQuery
from drumline.infra.grafana.thresholds import ANY, SILENT

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
