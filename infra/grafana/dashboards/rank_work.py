"""Panels on what a rank and its GPU did: the dashboard Rank below its verdicts."""

from __future__ import annotations

from drumline.infra.grafana.model import Field, Link, Panel, PanelQuery
from drumline.infra.grafana.tokens import STEP_PARTS, chosen

THIS_RANK = "@job AND @run AND @rank"
ITS_GPU = "gpu_uuid IN (SELECT gpu_uuid FROM processes WHERE @job AND @run AND @rank)"
TO_STEP = Link(
    "This step on the timeline",
    "drumline-timeline",
    keeps=("job", "run", "rank"),
    time=("${__data.fields.from_ms}", "${__data.fields.to_ms}"),
)
_BUDGET = ", ".join(f"avg(s.{column}) AS {name}" for name, column in STEP_PARTS.items())

BUDGET = Panel(
    "timeseries",
    "Where its step's time goes",
    "Mean per step: compute, copies not covered by it, communication not covered by either, idle. Waiting for others "
    "is communication.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(start) AS time, {_BUDGET}
        FROM steps AS s WHERE {THIS_RANK} AND @start AND skipped = 0 GROUP BY time ORDER BY time
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
            FROM kernel_frequency AS f WHERE {THIS_RANK} AND @window AND name IN (
                SELECT name FROM kernels_per_minute WHERE {THIS_RANK} AND @minute GROUP BY name
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
            FROM memcpy_bandwidth WHERE {THIS_RANK} AND @window GROUP BY time, direction, window_start, window_end
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
            FROM devices_per_minute WHERE @minute AND @job AND {ITS_GPU} GROUP BY time
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
                    arrayJoin([{", ".join(f"('{name}', avg(s.{column}))" for name, column in STEP_PARTS.items())},
                        ('whole step', avg(s.gpu_duration_ns))]) AS pair, pair.1 AS part, pair.2 AS value
                FROM steps AS s WHERE @job AND @run AND @start AND skipped = 0 AND gpu_duration_ns > 0 GROUP BY rank
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
    "Of this rank, by their time on the GPU; each leads to its kernels. What the host did needs PyTorch; waiting for "
    "the GPU needs CUPTI.",
    PanelQuery(
        f"""
        WITH gpu_duration_ns > 0 AS on_gpu
        SELECT step, start, if(on_gpu, gpu_duration_ns, NULL) AS step_ns, compute_ns, comm_exposed_ns, copy_ns, idle_ns,
            arrayStringConcat(arrayFilter(part -> part != '', [{_ON_HOST}]), ', ') AS on_host,
            toUnixTimestamp64Milli(if(on_gpu, gpu_start, s.start)) - 1 AS from_ms,
            from_ms + intDiv(if(on_gpu, gpu_duration_ns, s.duration_ns), 1000000) + 2 AS to_ms
        FROM steps AS s WHERE {THIS_RANK} AND @start ORDER BY step_ns DESC NULLS LAST LIMIT 50
        """,
        "step:n start:t step_ns:n compute_ns:n comm_exposed_ns:n copy_ns:n idle_ns:n on_host:s from_ms:n to_ms:n",
        "table",
    ),
    unit="ns",
    width=24,
    fields={
        "step": Field("none", link=TO_STEP, decimals=0),
        "start": Field(width=200),
        "step_ns": Field(header="On its GPU"),
        "comm_exposed_ns": Field(header="Communication"),
        "copy_ns": Field(header="Copies"),
        "on_host": Field(header="On its host", width=300, fills=True),
        "from_ms": Field(hidden=True),
        "to_ms": Field(hidden=True),
    },
)
