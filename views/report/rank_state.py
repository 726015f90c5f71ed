"""States of a late rank's steps, GPU and host while it was late, beside as long a time before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drumline.views.report.data import Query, Row

_UTC = "DateTime64(9, 'UTC')"
_BEGIN, _END = f"{{started:{_UTC}}}", f"{{ended:{_UTC}}}"
_BEFORE = f"{_BEGIN} - toIntervalNanosecond(dateDiff('nanosecond', {_BEGIN}, {_END}))"
_SCOPE = "job = {job:String} AND run = {run:String} AND rank = {rank:Int32}"


def _two(table: str, time: str, columns: str) -> str:
    """Return SQL with a row for the time before (late = 0) and one for the time (late = 1), where there are rows."""
    return (
        f"SELECT {time} >= {_BEGIN} AS late, {columns} FROM {table} AS t "
        f"WHERE {_SCOPE} AND {time} >= {_BEFORE} AND {time} <= {_END} GROUP BY late ORDER BY late"
    )


STEPS = _two(
    "steps", "start",
    "quantileExactInclusive(0.5)(gpu_duration_ns) / 1e6 AS median_ms, "
    "quantileExactInclusive(0.5)(gpu_duration_ns - comm_exposed_ns) / 1e6 AS own_ms",
)  # fmt: skip
GPU = _two(
    "device_samples", "time",
    "any(gpu_index) AS gpu, avg(util_gpu) AS busy, min(t.sm_clock) AS slowest_mhz, max(t.sm_clock) AS fastest_mhz, "
    "max(t.temperature) AS celsius, avg(power_mw) / 1e3 AS power_w",
)  # fmt: skip
HOST = _two(
    "host_samples", "time",
    "sum(main_wait_ns) / sum(interval_ns) AS waiting, sum(t.throttled_ns) / sum(interval_ns) AS throttled, "
    "sum(t.major_faults) AS faults, sum(main_blocked_ns) / sum(interval_ns) AS blocked",
)  # fmt: skip


def state_lines(query: Query, place: Mapping[str, Any]) -> list[str]:
    """Return what is stored of the rank's state, as lines; [] where nothing is.

    place: job, run, rank, started and ended of the episode. Raises the query's ClickHouseFailed.
    """
    lines = [
        _line("changed", query(STEPS, place), _from_steps),
        _line("gpu", query(GPU, place), _from_gpu_samples),
        _line("host", query(HOST, place), _from_host_samples),
    ]
    return [line for line in lines if line]


def _line(name: str, rows: list[Row], text: Any) -> str:
    texts = {bool(row["late"]): text(row) for row in rows}
    if not texts.get(True):
        return ""
    before = texts.get(False)
    return f"{name:<9} {texts[True]}" + (f" (before: {before})" if before else "")


def _from_steps(row: Row) -> str:
    # A healthy rank's step is as long as the slowest rank's: without waiting it shows whether this one changed.
    if not row["median_ms"]:
        return ""
    return f"its step took {row['median_ms']:.1f} ms on the GPU, {row['own_ms']:.1f} ms without communication"


def _from_gpu_samples(row: Row) -> str:
    values = (
        (row["busy"], "{:.0f}% busy"),
        (row["slowest_mhz"], f"{{:,.0f}} to {row['fastest_mhz'] or 0:,.0f} MHz"),
        (row["celsius"], "{:.0f} °C"),
        (row["power_w"], "{:.0f} W"),
    )
    return _joined(values)


def _from_host_samples(row: Row) -> str:
    values = (
        (row["waiting"], "main thread without a CPU {:.1%} of the time"),
        (row["throttled"], "throttled {:.1%}"),
        (row["blocked"], "waiting for a disk {:.1%}"),
        (row["faults"], "{:,.0f} major page faults"),
    )
    return _joined(values)


def _joined(values: tuple[tuple[Any, str], ...]) -> str:
    return ", ".join(form.format(value) for value, form in values if value is not None)
