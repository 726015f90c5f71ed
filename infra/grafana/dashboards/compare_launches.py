"""Panels of Compare runs over time: launches a step, their sizes, and how busy GPUs are. Both runs begin together."""

from __future__ import annotations

from drumline.infra.grafana.model import Panel, PanelQuery
from drumline.infra.grafana.tokens import chosen

IS_A, IS_B = (f"run = {chosen(name)}" for name in ("run_a", "run_b"))
BOTH = f"@job AND ({IS_A} OR {IS_B})"
_P95 = "quantilesDDMerge(0.01, 0.5, 0.95, 0.99)({})[3]"


def _shift(column: str, table: str, when: str) -> str:
    """Return SQL for a row's time, in run B moved to the begin of A."""
    begins = (
        f"(SELECT dateDiff('second', minIf({column}, {IS_B}), minIf({column}, {IS_A})) FROM {table} "
        f"WHERE {BOTH} AND {when})"
    )
    return f"{column} + toIntervalSecond(if({IS_A}, 0, {begins}))"


def _over_time(title: str, description: str, source: str, value: str, name: str, unit: str) -> Panel:
    return Panel(
        "timeseries",
        title,
        f"{description} Run B is drawn as if it had begun with A.",
        PanelQuery(
            f"""
            SELECT $__timeInterval(at) AS time, if(is_a, 'Run A', 'Run B') AS of_run, {value} AS {name}
            FROM ({source}) GROUP BY time, of_run ORDER BY time, of_run
            """,
            f"time:t of_run:s {name}:n",
        ),
        unit=unit,
        series="{of_run}",
        min_interval="1m",
    )


_STEPS = f"""
SELECT {_shift("start", "steps", "@start")} AS at, {IS_A} AS is_a, kernels + collectives AS launches, compute_ns,
    gpu_duration_ns FROM steps
WHERE {BOTH} AND @start AND skipped = 0 AND gpu_duration_ns > 0 AND kernels > 0
"""
_KERNELS = f"""
SELECT {_shift("minute", "kernels_per_minute", "@minute")} AS at, {IS_A} AS is_a, blocks, threads_per_block
FROM kernels_per_minute WHERE {BOTH} AND @minute
"""
LAUNCHES = _over_time(
    "Launches a step", "Kernels of a rank in a step, mean.", _STEPS, "avg(launches)", "launched", "none"
)
BUSY = _over_time(
    "GPU busy",
    "Share of the steps' time on the GPU in which kernels ran that are not communication.",
    _STEPS,
    "sum(compute_ns) / sum(gpu_duration_ns)",
    "busy",
    "percentunit",
)
GRIDS = _over_time("p95 grid", "Blocks in a launch, p95.", _KERNELS, _P95.format("blocks"), "grid", "none")
BLOCKS = _over_time(
    "p95 block", "Threads in a block, p95 of the launches.", _KERNELS, _P95.format("threads_per_block"), "block", "none"
)
