"""What a report holds, loaded for one run and span of time. Nothing is computed here that ClickHouse can compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.infra.report import queries as ask

Row = dict[str, Any]
Query = Callable[[str, Mapping[str, Any]], list[Row]]

#: What a plot shows at most: bins of steps or time, ranks.
BINS, WINDOW_BINS, RANKS = 300, 120, 64


class NoSuchRun(LookupError):
    """ClickHouse holds nothing of that job, run or time; the message names what it does hold."""


@dataclass(frozen=True)
class ReportData:
    """Rows as the queries in report_queries.py name their columns. Times: s, ms or us as the names say; UTC."""

    job: str
    run: Row
    other_runs: list[str]
    since: str
    until: str
    length_s: float
    whole: bool
    steps: Row
    step_times: list[Row]
    windows: Row
    episodes: list[Row]
    cost: list[Row]
    lateness: list[Row]
    kernels: list[Row]
    families: list[Row]
    memcpys: list[Row]
    devices: list[Row]
    device_times: list[Row]
    records: Row
    price_per_gpu_hour: float

    @property
    def ranks(self) -> int:
        return int(self.run["ranks"])


def find_run(query: Query, job: str, run: str) -> tuple[Row, list[str]]:
    """The run asked for, else the newest; and the names of the others. Raises NoSuchRun."""
    runs = query(ask.RUNS, {"job": job})
    if not runs:
        known = ", ".join(repr(row["job"]) for row in query(ask.JOBS, {}))
        raise NoSuchRun(f"no job {job!r} is stored; " + (f"there are: {known}" if known else "nothing is stored yet"))
    found = next((row for row in runs if not run or row["run"] == run), None)
    if found is None:
        raise NoSuchRun(f"job {job!r} has no run {run!r}; there are: {', '.join(row['run'] for row in runs)}")
    return found, [row["run"] for row in runs if row is not found]


def load(query: Query, job: str, run: str, since: str, until: str, price_per_gpu_hour: float) -> ReportData:
    """All that the report shows. `since`, `until`: as DateTime64(9, 'UTC') is written, "" = the run's begin and end.

    Raises NoSuchRun, and ClickHouseFailed of the query."""
    found, others = find_run(query, job, run)
    span = {"since": since or found["started"], "until": until or found["ended"]}
    scope: dict[str, Any] = {"job": job, "run": found["run"], **span}
    # Parameters of the type that the columns have, so that the server does the arithmetic.
    [extent] = query(ask.EXTENT, {**span, "started": found["started"], "ended": found["ended"]})
    if not extent["meets"]:
        first, last = since[:19], until[:19]
        asked = f"between {first} and {last}" if since and until else f"from {first} on" if since else f"until {last}"
        ran = f"run {found['run']} went from {found['started'][:19]} to {found['ended'][:19]}"
        raise NoSuchRun(f"nothing of this run {asked} (UTC); {ran}")
    length_ns = max(int(extent["ns"]), 1)
    steps, windows = query(ask.STEPS_EXTENT, scope)[0], query(ask.WINDOWS, scope)[0]
    bins = {"first": steps["first"], "width": _width(steps, BINS)}
    window_bins = {"first": windows["first"], "width": _window_width(windows), "ranks": RANKS}
    return ReportData(
        job=job,
        run=found,
        other_runs=others,
        **span,
        length_s=length_ns / 1e9,
        whole=not since and not until,
        steps=steps,
        step_times=query(ask.STEPS, {**scope, **bins}),
        windows=windows,
        episodes=query(ask.EPISODES, scope),
        cost=query(ask.COST, scope),
        lateness=query(ask.LATENESS, {**scope, **window_bins}),
        kernels=query(ask.KERNELS, scope),
        families=query(ask.FAMILIES, scope),
        memcpys=query(ask.MEMCPYS, scope),
        devices=query(ask.DEVICES, scope),
        device_times=query(ask.DEVICE_TIMES, {**scope, "length_ns": length_ns, "bins": WINDOW_BINS}),
        records=query(ask.RECORDS, scope)[0],
        price_per_gpu_hour=price_per_gpu_hour,
    )


def _width(extent: Row, bins: int) -> int:
    """Steps per bin, so that there are at most `bins`."""
    return max(1, -(-(int(extent["last"]) - int(extent["first"]) + 1) // bins))


def _window_width(windows: Row) -> int:
    """Steps per bin of the heatmap: whole windows of steps."""
    count = max(1, int(windows["windows"]))
    per_window = max(1, round((int(windows["last"]) - int(windows["first"]) + 1) / count))
    return per_window * max(1, -(-count // WINDOW_BINS))
