"""Alert rules on drumline itself, as far as ClickHouse can tell. A sink that is down leaves silence, as a fleet without
jobs does: that is for /readyz and its metrics (docs/reference/metrics.md)."""

from __future__ import annotations

from drumline.infra.grafana.alerts.rule import Group, Rule, Values
from drumline.infra.grafana.liveness import RANKS
from drumline.infra.grafana.thresholds import LAG_S, SILENT_S

LAG = Rule(
    "drumline-pipeline-lag", "Results lag behind", "warning",
    (
        Values(
            """
            SELECT job, run, toFloat64(dateDiff('second', results, raw)) AS value FROM (
                SELECT job, run, maxIf(last_published, topic = 'gpu.kernel.v1' AND rows > 0) AS raw,
                    maxIf(last_published, topic = 'gpu.kernel-frequency.v1') AS newest,
                    if(toUnixTimestamp(newest) = 0, minIf(last_published, topic = 'gpu.kernel.v1'), newest) AS results
                FROM records_per_minute AS r WHERE @minute AND run != '' GROUP BY job, run
                    HAVING toUnixTimestamp(raw) > 0
            )
            """
        ),
    ),
    "gt", (LAG_S,), 1800,
    "{{ $labels.job }}: results are {{ humanizeDuration $values.A.Value }} behind what is stored",
    "Run {{ $labels.run }}: raw kernels come in, rolling windows made of them do not. Is a worker up "
    "(its `/readyz` and log)? If so, how far is it behind (`drumline_stream_lag_records`)?",
    "Windows are 10 s and close 30 s after late rows at most; 120 s is a worker that is down, restarting again and "
    "again, or too slow.",
    ("drumline-health", "lag"), {}, for_s=60,
)  # fmt: skip
DROPS = Rule(
    "drumline-rows-dropped", "Rows dropped", "warning",
    (
        Values(
            """
            SELECT job, run, topic, toFloat64(sum(dropped_rows)) AS value
            FROM records_per_minute WHERE @minute AND job != '' GROUP BY job, run, topic
            """
        ),
    ),
    "gt", (0.0,), 600,
    "{{ $labels.job }}: {{ humanize $values.A.Value }} rows of {{ $labels.topic }} dropped",
    "Run {{ $labels.run }}: a buffer or the spool was full: the agent or Kafka is too slow or down. Training did not "
    "wait.",
    "Producers drop rather than wait, and count it. Any loss is told.",
    ("drumline-health", "drops"), {},
)  # fmt: skip
DEAD_LETTERS = Rule(
    "drumline-dead-letters", "Dead letters", "warning",
    (
        Values(
            "SELECT topic, toFloat64(sum(dead)) AS value FROM records_per_minute WHERE @minute GROUP BY topic"
        ),
    ),
    "gt", (0.0,), 900,
    "{{ humanize $values.A.Value }} records of {{ $labels.topic }} could not be read",
    "`drumline dlq show {{ $labels.topic }}` says why; `drumline dlq replay` puts them back.",
    "A record that nobody can read is a fault of a producer or of a schema registry.",
    ("drumline-health", "dead"), {},
)  # fmt: skip
SILENT = Rule(
    "drumline-silent-producer", "Silent producer", "warning",
    (Values(f"SELECT job, run, toString(rank) AS rank, host, silent_s AS value FROM ({RANKS})"),),
    "gt", (SILENT_S,), 86_400,
    "{{ $labels.job }}: nothing is heard of rank {{ $labels.rank }} on {{ $labels.host }}",
    "Run {{ $labels.run }}: for {{ humanizeDuration $values.A.Value }} its process has not even said that it lives, "
    "while the job goes on. The host or its agent is down (`drumline doctor` there), the process was killed, or the "
    "decoder beside it. Its last words: `drumline sql collecting --job {{ $labels.job }}`.",
    "Every process says each 10 s that it lives, also while it launches no kernel and while nothing is recorded; 60 s "
    "is a restart of the agent and more. One that said that it ends is not silent, nor are the ranks of a job of which "
    "nobody is heard. A rank is looked for in 24 hours, so that the alert stays while it is silent. Replays say once "
    "who they are, and are left out.",
    ("drumline-health", "silent"), {}, for_s=60,
)  # fmt: skip

PIPELINE = Group("drumline-pipeline", 60, (LAG, DROPS, DEAD_LETTERS, SILENT))
