"""Rank: what did one process and its GPU do, and what was different from its peers?"""

from __future__ import annotations

from drumline.infra.grafana.dashboards.status import faults, stat
from drumline.infra.grafana.dashboards.verdict_panels import lost_share
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery, chosen
from drumline.infra.grafana.thresholds import LEVEL, LOST, SHARE, TEMPERATURE, THROTTLED_BITS
from drumline.infra.grafana.variables import JOB, LABELLED, MARKS, RANK, RUN

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

_LAST = f"window_end, @evaluated) AS value FROM stragglers WHERE {_VERDICTS} AND @window"
_ITS_GPU = "gpu_uuid IN (SELECT gpu_uuid FROM processes WHERE @job AND @run AND @rank)"
NUMBERS = (
    stat(
        "Level",
        "Level in force after the last window in this time range.",
        f"SELECT argMaxIf(@level, {_LAST}",
        "none",
        limits=LEVEL,
        levels=True,
    ),
    stat(
        "Lost now",
        "Share of the job's time lost to this rank in the last window.",
        f"SELECT argMaxIf(lost_share, {_LAST}",
        "percentunit",
        limits=SHARE,
    ),
    stat(
        "GPU time lost",
        "GPU time that other ranks spent waiting for this one.",
        f"SELECT sum(gpu_seconds_lost) AS value FROM stragglers WHERE {_VERDICTS} AND @window",
        "s",
        limits=LOST,
    ),
    stat(
        "Step time",
        "Median of its steps.",
        f"SELECT quantileExactInclusive(0.5)(gpu_duration_ns) AS value FROM steps WHERE {_THIS_RANK} AND @start "
        "AND skipped = 0 AND gpu_duration_ns > 0",
        "ns",
    ),
    stat(
        "Temperature of its GPU",
        "Highest in this time range.",
        f"SELECT max(max_temperature) AS value FROM devices_per_minute WHERE @minute AND @job AND {_ITS_GPU}",
        "celsius",
        limits=TEMPERATURE,
        decimals=0,
    ),
    faults(
        "Minutes throttled",
        "Minutes in which heat or a power fault slowed its GPU down.",
        f"SELECT uniqExactIf(minute, bitAnd(throttle_reasons, {THROTTLED_BITS}) != 0) AS value FROM devices_per_minute "
        f"WHERE @minute AND @job AND {_ITS_GPU}",
    ),
)
PROCESSES = Panel(
    "table",
    "Processes",
    "The rank's processes, newest first.",
    PanelQuery(
        """
        SELECT host, gpu_index AS gpu, gpu_model AS model, gpu_uuid, pid,
            if(k8s_pod != '', concat(k8s_namespace, '/', k8s_pod), slurm_job) AS placed, policy, start AS since
        FROM processes WHERE @job AND @run AND @rank AND start <= $__toTime_ms ORDER BY since DESC LIMIT 10
        """,
        "host:s gpu:n model:s gpu_uuid:s pid:n placed:s policy:s since:t",
        "table",
    ),
    unit="none",
    width=24,
    height=4,
    fields={
        "host": Field(width=140),
        "model": Field(header="GPU model", width=140),
        "gpu_uuid": Field(width=350),
        "placed": Field(header="Pod or Slurm job", width=200),
        "policy": Field(header="Recorded", width=170, fills=True),
    },
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
    series="level",
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
    "Launches per second of the six most launched kernels, from rolling windows of the stream processor (10 s every "
    "5 s).",
    PanelQuery(
        f"""
        SELECT time, substring(short, 1, 32) AS kernel, max(rate) AS launches FROM (
            SELECT $__timeInterval_ms(window_end) AS time, name,
                max(f.launches / (dateDiff('millisecond', window_start, window_end) / 1e3)) AS rate
            FROM kernel_frequency AS f WHERE {_THIS_RANK} AND @window AND name IN (
                SELECT name FROM kernels_per_minute WHERE {_THIS_RANK} AND @minute GROUP BY name
                    ORDER BY sum(launches) DESC LIMIT 6
            ) GROUP BY time, name
        ) AS k LEFT JOIN kernel_names AS n ON k.name = n.name GROUP BY time, kernel ORDER BY time, kernel
        """,
        "time:t kernel:s launches:n",
    ),
    unit="ops",
    series="{kernel}",
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
    series="{direction}",
    min_interval="5s",
)
DEVICE = Panel(
    "timeseries",
    "Its GPU",
    "Utilisation and clock as shares: of time with any kernel, and of the highest SM clock seen in this time range.",
    PanelQuery(
        f"""
        SELECT time, utilisation, clock / greatest(max(clock) OVER (), 1) AS sm_clock FROM (
            SELECT $__timeInterval(minute) AS time, avgMerge(util_gpu) / 100 AS utilisation,
                toFloat64(min(min_sm_clock)) AS clock
            FROM devices_per_minute WHERE @minute AND @job AND {_ITS_GPU} GROUP BY time
        ) ORDER BY time
        """,
        "time:t utilisation:n sm_clock:n",
    ),
    unit="percentunit",
    fields={"sm_clock": Field(header="SM clock, share of its highest")},
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
#: What the host did in a step: column of `steps` -> name.
_HOST = {"load_ns": "loading data", "gc_ns": "garbage collection", "checkpoint_ns": "checkpoint", "sync_ns": "waiting"}
_ON_HOST = ", ".join(
    f"if(ifNull({column}, 0) > 0, concat('{name} ', toString(round({column} / 1e6, 1)), ' ms'), '')"
    for column, name in _HOST.items()
)
SLOWEST = Panel(
    "table",
    "Slowest steps",
    "Of this rank; each leads to its kernels. What the host did needs PyTorch; waiting for the GPU needs CUPTI.",
    PanelQuery(
        f"""
        SELECT step, start, duration_ns, compute_ns, comm_exposed_ns, copy_ns, idle_ns,
            arrayStringConcat(arrayFilter(part -> part != '', [{_ON_HOST}]), ', ') AS on_host,
            toUnixTimestamp64Milli(start) - 1 AS from_ms, toUnixTimestamp64Milli(end_time) + 1 AS to_ms
        FROM steps WHERE {_THIS_RANK} AND @start ORDER BY duration_ns DESC LIMIT 50
        """,
        "step:n start:t duration_ns:n compute_ns:n comm_exposed_ns:n copy_ns:n idle_ns:n on_host:s from_ms:n to_ms:n",
        "table",
    ),
    unit="ns",
    width=24,
    fields={
        "step": Field("none", link=TO_STEP, decimals=0),
        "start": Field(width=190),
        "comm_exposed_ns": Field(header="Communication"),
        "copy_ns": Field(header="Copies"),
        "on_host": Field(header="On its host", width=300, fills=True),
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
        NUMBERS,
        (VERDICT,),
        (BUDGET, lost_share(_VERDICTS)),
        (PEERS, DEVICE),
        (SLOWEST,),
        (FREQUENCY, COPIES),
        (PROCESSES,),
    ),
    (*LABELLED, JOB, RUN, RANK),
    MARKS,
)
