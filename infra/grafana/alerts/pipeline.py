"""Alert rules on drumline itself, as far as rows in ClickHouse show it.

That nothing arrives shows a pipeline that is down while live processes are known; infra/prometheus names the program.
"""

from __future__ import annotations

from drumline.infra.grafana.alerts.rule import PLACE, Group, Rule, Values, with_limit, with_owner
from drumline.infra.grafana.limits import DROPPED
from drumline.infra.grafana.limits import LAG as LAG_LIMIT
from drumline.infra.grafana.limits import SILENT as SILENT_LIMIT
from drumline.infra.grafana.liveness import ACTIVE_RUNS, IN_ORDER, LAST_RECORD, RANKS
from drumline.infra.grafana.thresholds import DROPPED_ROWS, LAG_S, SILENT_S
from drumline.infra.guidance.entry import DRUMLINE
from drumline.schemas.topics import Topic


def _behind(raw: Topic, results: Topic) -> str:
    """Return SQL of the seconds by which the results of a topic are behind its newest rows; 0 without rows."""
    at, newest = f"topic = '{raw}' AND has_rows", f"topic = '{results}'"
    return (
        f"toFloat64(if(countIf({at}) = 0, 0, dateDiff('second', "
        f"if(countIf({newest}) = 0, minIf(first, {at}), maxIf(newest, {newest})), maxIf(last, {at}))))"
    )


#: A step's rows come when it is over, and so does its lateness; its collectives come before. One rank has no lateness,
#: nor has a job that is recorded without collectives.
_LAG = f"""
    SELECT job, run, greatest(windows, if((job, run) IN (
        SELECT job, run FROM processes GROUP BY job, run HAVING uniqExact(rank) > 1
    ), steps, 0)) AS value FROM (
        SELECT job, run, {_behind(Topic.KERNEL, Topic.KERNEL_FREQUENCY)} AS windows,
            if(countIf(topic = '{Topic.COLLECTIVE}' AND has_rows) > 0,
                {_behind(Topic.STEP, Topic.LATENESS)}, 0) AS steps
        FROM (
            SELECT job, run, topic, max(r.rows) > 0 AS has_rows, minIf(last_published, r.rows > 0) AS first,
                maxIf(last_published, r.rows > 0) AS last, max(last_published) AS newest
            FROM records_per_minute AS r
            WHERE @minute AND run != '' AND topic IN ('{Topic.KERNEL}', '{Topic.KERNEL_FREQUENCY}',
                '{Topic.COLLECTIVE}', '{Topic.STEP}', '{Topic.LATENESS}')
            GROUP BY job, run, topic {IN_ORDER}
        ) GROUP BY job, run HAVING countIf(topic IN ('{Topic.KERNEL}', '{Topic.COLLECTIVE}') AND has_rows) > 0
    )
    """
LAG = Rule(
    "drumline-pipeline-lag", "Results lag behind", "warning", with_limit(_LAG, LAG_LIMIT),
    "gt", (LAG_S,), 86_400,
    "{{ $labels.job }}: results are {{ humanizeDuration $values.VALUE.Value }} behind what is stored",
    "Run {{ $labels.run }}: raw kernels or steps come in, rolling windows or comparisons made of them do not: a "
    "worker is down or too slow.",
    "Is a worker up (its `/readyz` and log)? If so, how far is it behind (`drumline_stream_lag_records`)?",
    "Start the worker if it is down; add workers if it is too slow.",
    "Windows are 10 s and close 30 s after late rows at most; 120 s is a worker that is down, restarting again and "
    f"again, or too slow. Kernels are compared with rolling windows, steps of several ranks with `{Topic.LATENESS}`, "
    "so that jobs without CUPTI count too. Data of 24 hours is checked: the alert stays while the worker is down.",
    ("drumline-health", "lag"), {}, for_s=60, job_limit=LAG_LIMIT,
)  # fmt: skip
DROPS = Rule(
    "drumline-rows-dropped", "Rows dropped", "warning",
    with_limit(
        """
        SELECT job, run, topic, toFloat64(sum(dropped_rows)) AS value
        FROM records_per_minute WHERE @minute AND job != '' GROUP BY job, run, topic
        """,
        DROPPED,
    ),
    "gt", (DROPPED_ROWS,), 600,
    "{{ $labels.job }}: {{ humanize $values.VALUE.Value }} rows of {{ $labels.topic }} dropped",
    "Run {{ $labels.run }}: a buffer or the spool was full: the agent or Kafka is too slow or down. Training did not "
    "wait.",
    "Look at the agent of the host (`/readyz`, its log) and at Kafka: which is slow or down?",
    "Start it, or give the spool more room.",
    "Producers drop rather than wait, and count it. Any loss is an alert.",
    ("drumline-health", "drops"), {}, job_limit=DROPPED,
)  # fmt: skip
DEAD_LETTERS = Rule(
    "drumline-dead-letters", "Dead letters", "warning",
    (
        Values(
            "SELECT topic, toFloat64(sum(dead_letters)) AS value FROM records_per_minute WHERE @minute GROUP BY topic"
        ),
    ),
    "gt", (0.0,), 900,
    "{{ humanize $values.A.Value }} records of {{ $labels.topic }} could not be read",
    "They are kept apart, and missing from results: a producer, or a schema registry, wrote what cannot be read.",
    "`drumline dlq show TOPIC` shows the reason of each.",
    "Upgrade what wrote or what reads it, then `drumline dlq replay` publishes them again.",
    "A record that cannot be read is a fault of a producer or of a schema registry.",
    ("drumline-health", "dead"), {},
)  # fmt: skip
QUARANTINE = Rule(
    "drumline-job-quarantine", "Job in quarantine", "warning",
    (
        with_owner(
            """
            SELECT job, run, toFloat64(countIf(detail = 'quarantine')) AS value
            FROM stragglers AS s WHERE @window GROUP BY job, run
            """
        ),
    ),
    "gt", (0.0,), 600,
    "{{ $labels.job }}: the stream worker dropped its state",
    "Run {{ $labels.run }}: an error, or more state than a job may keep. Some of its results are missing for 10 "
    "minutes; other jobs are not concerned.",
    "Read the worker's log, and `evidence_json` of its row in `stragglers` (rank -1, detail `quarantine`).",
    "Report the defect. Nothing else: the job is taken up again by itself.",
    "An error in one job is a defect of drumline or of the job's producer. It lasts as long as the quarantine.",
    ("drumline-stragglers", "lost"), {"job": "job", "run": "run"},
)  # fmt: skip
SILENT = Rule(
    "drumline-silent-producer", "Silent producer", "warning",
    with_limit(f"SELECT job, run, toString(rank) AS rank, host, pod, silent_s AS value FROM ({RANKS})", SILENT_LIMIT,
               ACTIVE_RUNS),
    "gt", (SILENT_S,), 86_400,
    "{{ $labels.job }}: rank {{ $labels.rank }} on {{ $labels.host }} is silent",
    "Run {{ $labels.run }}: its process has not reported for {{ humanizeDuration $values.VALUE.Value }}, while the job "
    "continues. The host or its agent is down, or the process or its decoder was killed. " + PLACE,
    "Run `drumline doctor` on the host. Its last report: `drumline sql collecting --job JOB`.",
    "Start the host or its agent; if the process has ended, read why in the job's log.",
    "Every process reports each 10 s, also while it launches no kernel and while nothing is recorded; 60 s is longer "
    "than a restart of the agent. A process that reported its end is not silent, nor are the ranks of a job that is "
    "not active. Ranks of the last 24 hours are checked, so that the alert stays while one is silent. Replays report "
    "once, and are left out.",
    ("drumline-health", "silent"), {"job": "job", "run": "run"}, for_s=60, job_limit=SILENT_LIMIT, opens_rank=True,
)  # fmt: skip

ARRIVES = Rule(
    "drumline-nothing-arrives", "Nothing arrives", "critical",
    (Values(f"SELECT toFloat64(dateDiff('second', last_record, $__toTime_ms)) AS value FROM ({LAST_RECORD})"),),
    "gt", (SILENT_S,), 86_400,
    "No job's data has arrived for {{ humanizeDuration $values.A.Value }}",
    "Processes that did not report their end were recorded until then, and none has been since: the sink, Kafka or all "
    "agents are down. Stragglers and hangs are not seen meanwhile. No data is lost as long as spools and Kafka's "
    "retention last.",
    "`drumline status`, then the log and `/readyz` of sink, broker and agents.",
    "Start what is down. If the only job was "
    "killed together with its decoders, nothing is wrong: the alert ends with the next job.",
    "Every live process reports each 10 s; 60 s is longer than a restart of a sink or broker. A fleet whose jobs all "
    "reported their end is idle, and raises no alert. Data is missed for 24 hours.",
    ("drumline-health", "lag"), {},
)  # fmt: skip

#: More often than the other rules: it is the one that shows that those see nothing.
ARRIVAL = Group("drumline-arrival", 30, DRUMLINE, (ARRIVES,))
PIPELINE = Group("drumline-pipeline", 60, DRUMLINE, (LAG, DROPS, DEAD_LETTERS, QUARANTINE, SILENT))
