"""Rank: what did one process and its GPU do, and what was different from its peers?"""

from __future__ import annotations

from drumline.infra.grafana.dashboards.verdict_panels import lost_share
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery, chosen
from drumline.infra.grafana.thresholds import LEVEL
from drumline.infra.grafana.variables import JOB, MARKS, RANK, RUN

_THIS_RANK = "@job AND @run AND @rank"
#: Without a choice none; rank -1 has the verdicts on the job as a whole.
_VERDICTS = f"@job AND @run AND rank = toInt32OrDefault({chosen('rank')}, toInt32(-2))"
TO_STEP = Link(
    "This step on the timeline",
    "drumline-timeline",
    keeps=("job", "run", "rank"),
    time=("${__data.fields.from_ms}", "${__data.fields.to_ms}"),
)
_PARTS = {
    "compute": "compute_ns",
    "copies": "copy_ns",
    "communication": "comm_exposed_ns",
    "idle": "idle_ns",
}
_BUDGET = ", ".join(f"avg(s.{column}) AS {name}" for name, column in _PARTS.items())

PROCESSES = Panel(
    "table",
    "Processes",
    "The rank's processes, newest first.",
    PanelQuery(
        """
        SELECT host, gpu_index AS gpu, gpu_model AS model, gpu_uuid, pid, k8s_namespace AS namespace, k8s_pod AS pod,
            slurm_job AS slurm,
            policy, source, start AS since
        FROM processes WHERE @job AND @run AND @rank AND start <= $__toTime_ms ORDER BY since DESC LIMIT 10
        """,
        "host:s gpu:n model:s gpu_uuid:s pid:n namespace:s pod:s slurm:s policy:s source:s since:t",
        "table",
    ),
    unit="none",
    width=24,
    height=4,
    empty="choose a rank",
)
VERDICT = Panel(
    "state-timeline",
    "Level in force",
    "Level of this rank after the last window, with recurrence.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(window_end) AS time, argMax(@level, window_end) AS level
        FROM stragglers WHERE {_VERDICTS} AND @window
        GROUP BY time ORDER BY time
        """,
        "time:t level:n",
    ),
    unit="none",
    width=24,
    height=4,
    levels=True,
    thresholds=LEVEL,
    minimum=None,
    empty="no verdicts in this time range",
)
BUDGET = Panel(
    "timeseries",
    "Where its step's time goes",
    "Mean per step: compute, copies not covered by it, communication not covered by either, idle. Waiting for others "
    "is communication.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(start) AS time, {_BUDGET}
        FROM steps AS s WHERE {_THIS_RANK} AND @start AND skipped = 0 GROUP BY time ORDER BY time
        """,
        "time:t compute:n copies:n communication:n idle:n",
    ),
    unit="ns",
    stacked=True,
    min_interval="1s",
)
FREQUENCY = Panel(
    "timeseries",
    "Kernel frequency",
    "Launches per second of the ten most launched kernels, from rolling windows of the stream processor (10 s every "
    "5 s).",
    PanelQuery(
        f"""
        SELECT time, short AS kernel, max(rate) AS launches FROM (
            SELECT $__timeInterval_ms(window_end) AS time, name,
                max(f.launches / (dateDiff('millisecond', window_start, window_end) / 1e3)) AS rate
            FROM kernel_frequency AS f WHERE {_THIS_RANK} AND @window AND name IN (
                SELECT name FROM kernels_per_minute WHERE {_THIS_RANK} AND @minute GROUP BY name
                    ORDER BY sum(launches) DESC LIMIT 10
            ) GROUP BY time, name
        ) AS k LEFT JOIN kernel_names AS n ON k.name = n.name GROUP BY time, kernel ORDER BY time, kernel
        """,
        "time:t kernel:s launches:n",
    ),
    unit="ops",
    min_interval="5s",
)
COPIES = Panel(
    "timeseries",
    "Copies by direction",
    "Bytes per second, from rolling windows of the stream processor.",
    PanelQuery(
        f"""
        SELECT time, direction, max(rate) AS bytes_per_s FROM (
            SELECT $__timeInterval_ms(window_end) AS time, direction,
                sum(bytes) / (dateDiff('millisecond', window_start, window_end) / 1e3) AS rate
            FROM memcpy_bandwidth WHERE {_THIS_RANK} AND @window GROUP BY time, direction, window_start, window_end
        ) GROUP BY time, direction ORDER BY time, direction
        """,
        "time:t direction:s bytes_per_s:n",
    ),
    unit="Bps",
    min_interval="5s",
)
DEVICE = Panel(
    "timeseries",
    "Its GPU",
    "Utilisation and clock as shares: of time with any kernel, and of the highest SM clock seen in this time range.",
    PanelQuery(
        """
        SELECT time, utilisation, clock / greatest(max(clock) OVER (), 1) AS sm_clock FROM (
            SELECT $__timeInterval(minute) AS time, avgMerge(util_gpu) / 100 AS utilisation,
                toFloat64(min(min_sm_clock)) AS clock
            FROM devices_per_minute WHERE @minute AND @job AND gpu_uuid IN (
                SELECT gpu_uuid FROM processes WHERE @job AND @run AND @rank
            ) GROUP BY time
        ) ORDER BY time
        """,
        "time:t utilisation:n sm_clock:n",
    ),
    unit="percentunit",
    maximum=1,
    min_interval="1m",
)
PEERS = Panel(
    "table",
    "Against its peers",
    "Its mean step in this time range, part by part, beside the median of the other ranks, and the excess over it.",
    PanelQuery(
        f"""
        SELECT part, this_rank, peers, this_rank - peers AS excess FROM (
            SELECT part, anyIf(value, is_this) AS this_rank, quantileIf(0.5)(value, NOT is_this) AS peers FROM (
                SELECT rank = toInt32OrDefault({chosen("rank")}, toInt32(-1)) AS is_this,
                    arrayJoin([{", ".join(f"('{name}', avg(s.{column}))" for name, column in _PARTS.items())},
                        ('whole step', avg(s.duration_ns))]) AS pair, pair.1 AS part, pair.2 AS value
                FROM steps AS s WHERE @job AND @run AND @start AND skipped = 0 GROUP BY rank
            ) GROUP BY part
        ) ORDER BY excess DESC
        """,
        "part:s this_rank:n peers:n excess:n",
        "table",
    ),
    unit="ns",
)
SLOWEST = Panel(
    "table",
    "Slowest steps",
    "Of this rank; each leads to its kernels. Times of the host need PyTorch, waiting for the GPU CUPTI: - without.",
    PanelQuery(
        f"""
        SELECT step, start, duration_ns, compute_ns, copy_ns, comm_exposed_ns, idle_ns, load_ns, gc_ns,
            checkpoint_ns, sync_ns, kernels,
            toUnixTimestamp64Milli(start) - 1 AS from_ms, toUnixTimestamp64Milli(end_time) + 1 AS to_ms
        FROM steps WHERE {_THIS_RANK} AND @start ORDER BY duration_ns DESC LIMIT 50
        """,
        "step:n start:t duration_ns:n compute_ns:n copy_ns:n comm_exposed_ns:n idle_ns:n load_ns:n gc_ns:n "
        "checkpoint_ns:n sync_ns:n kernels:n from_ms:n to_ms:n",
        "table",
    ),
    unit="ns",
    fields={
        "step": Field("none", link=TO_STEP, decimals=0),
        "kernels": Field("short"),
        "from_ms": Field(hidden=True),
        "to_ms": Field(hidden=True),
    },
)

RANK_BOARD = Dashboard(
    "drumline-rank",
    "Rank",
    "What did one process and its GPU do, and what was different from its peers?",
    "rank",
    (
        (PROCESSES,),
        (VERDICT,),
        (BUDGET, lost_share(_VERDICTS)),
        (PEERS, SLOWEST),
        (FREQUENCY, COPIES),
        (DEVICE,),
    ),
    (JOB, RUN, RANK),
    MARKS,
)
