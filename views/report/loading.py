"""Loads the data of a report for one run and span of time. ClickHouse computes all that it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from drumline.infra.clickhouse.queries import query as named_query
from drumline.infra.guidance.causes import SLOW_LINK
from drumline.views.report import device_queries, queries
from drumline.views.report.data import LISTED, NoSuchRun, Query, ReportData, Row, find_run, verdicts_of
from drumline.views.report.deep_window import EPISODE, deep_window
from drumline.views.report.heat_map import joined_bands
from drumline.views.report.link_state import link_evidence

#: Takes the fields of ReportData that are known, and the names of those that are new.
Arrived = Callable[[Mapping[str, Any], tuple[str, ...]], None]
#: Limits of a plot: bins of steps or time.
BINS, WINDOW_BINS, SPREAD_BINS = 300, 120, 30
#: Ranks with a row of their lateness each; of a larger job those that are latest, beside bands of all its ranks.
RANKS, LATEST, BANDS = 64, 24, 128
#: Lines of a chart that colours can distinguish.
SERIES = 8
#: Rows of the question stalls that are looked at, and the least share of a kernel's samples that is listed; %.
MOST_STALLS, LEAST_STALL = 500, 10.0
#: Stacks of the flame graph.
MOST_STACKS = 1_000
#: Steps of a run, each rank's counted, that are read one by one: above, a rollup is.
MOST_STEPS = 500_000
#: Samples of GPUs that are read one by one: above, a rollup is.
MOST_SAMPLES = 1_000_000
#: Queries at a time: the server answers each with two threads, within the memory of one reader.
SIDE_BY_SIDE = 3
#: Episodes whose deep window is compared: a job has one in ten minutes at the most, and each is a second of ClickHouse.
DEEP = 3


def load(
    query: Query,
    job: str,
    run: str,
    since: str,
    until: str,
    price_per_gpu_hour: float,
    arrived: Arrived = lambda known, new: None,
    deep: bool = True,
) -> ReportData:
    """Load all data of the report.

    `since` and `until` are written as DateTime64(9, 'UTC'); "" stands for the run's begin and end. Several threads call
    `query`. `arrived` is called with the fields that are known so far, and the names of the new ones. `deep`: False
    leaves deep windows, the most expensive part, for later, and episodes say so. Raises NoSuchRun, and the query's
    ClickHouseFailed.
    """
    chosen, other_runs = find_run(query, job, run)
    span = {"since": since or chosen["started"], "until": until or chosen["ended"]}
    scope: dict[str, Any] = {"job": job, "run": chosen["run"], **span}
    # Parameters of the type that the columns have, so that the server does the arithmetic.
    [extent] = query(queries.EXTENT, {**span, "started": chosen["started"], "ended": chosen["ended"]})
    if not extent["overlaps"]:
        first, last = since[:19], until[:19]
        part = f"from {first} on" if since else f"until {last}"
        if since and until:
            part = f"between {first} and {last}"
        ran = f"run {chosen['run']} went from {chosen['started'][:19]} to {chosen['ended'][:19]}"
        raise NoSuchRun(f"nothing of this run {part} (UTC); {ran}")
    length_ns = max(int(extent["ns"]), 1)
    known: dict[str, Any] = {
        "job": job,
        "run": chosen,
        "other_runs": other_runs,
        **span,
        "length_s": length_ns / 1e9,
        "whole": not since and not until,
        "price_per_gpu_hour": price_per_gpu_hour,
    }
    ranks, kernels = int(chosen["ranks"]), int(chosen["kernels"])
    with side_by_side(verdicts_of(query, chosen)) as later:
        parts: dict[Future[Any], tuple[str, ...]] = {  # the longest first
            later(_devices, {**scope, "length_ns": length_ns, "bins": WINDOW_BINS}, ranks): ("devices", "device_times"),
            later(_episodes, scope, deep, kernels > 0): ("episodes",),
            later(_steps, scope, int(chosen["steps"]) > MOST_STEPS): ("steps", "step_times"),
            later(_windows, scope, ranks): ("windows", "lateness", "bands"),
            later(_only, queries.COST, scope): ("cost",),
            later(_only, queries.KERNELS, scope): ("kernels",),
            later(_only, queries.FAMILIES, scope): ("families",),
            later(_only, queries.MEMCPYS, scope): ("memcpys",),
            later(_hot, scope, price_per_gpu_hour): ("hot_lines", "hot_stacks"),
            later(_stalls, scope): ("stalls",),
            later(_only, queries.HANGS, scope): ("hangs",),
            later(_only, queries.STACKS, scope): ("stacks",),
            later(_first, queries.RECORDS, scope): ("records",),
        }
        for done in as_completed(parts):
            known |= zip(parts[done], done.result(), strict=True)
            arrived(known, parts[done])
    return ReportData(**known)


@contextmanager
def side_by_side(query: Query) -> Iterator[Callable[..., Future[Any]]]:
    """Yield a function that runs another one, with the query and its arguments, beside the rest.

    Several threads call `query`.
    """
    pool = ThreadPoolExecutor(SIDE_BY_SIDE)
    try:
        yield lambda work, *arguments: pool.submit(work, query, *arguments)
    finally:
        pool.shutdown(cancel_futures=True)


def rows_of(query: Query, sql: str, parameters: Row) -> list[Row]:
    """Return the rows of a query, for `side_by_side`. Raises the query's errors."""
    return query(sql, parameters)


def _only(query: Query, sql: str, parameters: Row) -> tuple[list[Row]]:
    return (query(sql, parameters),)


def _first(query: Query, sql: str, parameters: Row) -> tuple[Row]:
    return (query(sql, parameters)[0],)


def _steps(query: Query, scope: Row, many: bool) -> tuple[Row, list[Row]]:
    """Return the extent of the steps, and their times in bins. `many`: seconds are read in place of steps."""
    extent, times = (queries.STEPS_EXTENT, queries.STEPS)
    if many:
        extent, times = (queries.SECONDS_EXTENT, queries.SECONDS)
        scope = {**scope, "ranks": [row["rank"] for row in query(queries.RANKS_WITH_MOST_STEPS, scope)]}
    [steps] = query(extent, scope)
    return steps, query(times, {**scope, "first": steps["first"], "width": _width(steps, BINS)})


def _windows(query: Query, scope: Row, ranks: int) -> tuple[Row, list[Row], list[Row]]:
    """Return the windows of steps; the lateness of the latest ranks in bins of them, and of bands of all ranks."""
    [windows] = query(queries.WINDOWS, scope)
    bins = {"first": windows["first"], "width": _window_width(windows)}
    if ranks <= RANKS:
        return windows, query(queries.LATENESS, {**scope, **bins, "ranks": RANKS}), []
    band = -(-ranks // BANDS)
    cells = [{**row, "rank": row["first_rank"]} for row in query(queries.BANDS, {**scope, **bins, "band": band})]
    latest = query(queries.LATENESS, {**scope, **bins, "ranks": LATEST})
    return windows, latest, joined_bands(cells, band, BANDS)


def _episodes(query: Query, scope: Row, deep: bool, has_kernels: bool) -> tuple[list[Row]]:
    """Return the episodes with the evidence of links and deep windows, of which a run without kernels has none."""
    episodes = [{**row} for row in query(queries.EPISODES, scope)]
    for row in [row for row in episodes if row["cause"] == SLOW_LINK][:LISTED]:
        row["links"] = link_evidence(query, scope | _place(row))
    late = [row for row in episodes if row["rank"] >= 0 and row["state"] != "suspect"]
    for row in late[:DEEP] if has_kernels else []:
        row["deep"], row["deep_later"] = deep_window(query, scope | _place(row)) if deep else None, not deep
    return (episodes,)


def _devices(query: Query, scope: Row, ranks: int) -> tuple[list[Row], list[Row]]:
    """Return the first GPUs, and the measures of all in bins of time, with fewer bins where lines are of all."""
    devices = query(device_queries.DEVICES, scope)
    cut = len(devices) >= device_queries.MOST_GPUS  # a process may have several: those listed may be of few ranks
    if (ranks if cut else len({row["rank"] for row in devices})) <= SERIES:
        return devices, query(device_queries.DEVICE_TIMES, scope)
    samples = sum(row["samples"] for row in devices) / len(devices) * ranks
    times = device_queries.DEVICE_MINUTES if samples > MOST_SAMPLES else device_queries.DEVICE_SPREAD
    return devices, query(times, {**scope, "bins": SPREAD_BINS})


def _stalls(query: Query, scope: Row) -> tuple[list[Row]]:
    """Return what the warps of the kernels with most samples waited for most; [] where no window sampled the GPU."""
    question = named_query("stalls")
    given = {name: str(scope[name])[:23] for name in ("since", "until")} | {"job": scope["job"], "run": scope["run"]}
    rows = query(question.sql, question.values({**given, "limit": str(MOST_STALLS)}))
    return ([row for row in rows if row["percent"] >= LEAST_STALL][:LISTED],)


def _hot_lines(query: Query, scope: Row, price: float, by: str = "line", most: int = LISTED) -> list[Row]:
    """Return the lines or stacks that launched most GPU time, of deep windows; [] where none recorded launches."""
    question = named_query("hot-lines")
    given = {name: str(scope[name])[:23] for name in ("since", "until")} | {"job": scope["job"], "run": scope["run"]}
    return query(question.sql, question.values({**given, "price": str(price), "by": by, "limit": str(most)}))


def _hot(query: Query, scope: Row, price: float) -> tuple[list[Row], list[Row]]:
    """Return the lines that launched most GPU time, and, where there are some, the stacks."""
    lines = _hot_lines(query, scope, price)
    return lines, _hot_lines(query, scope, 0.0, "stack", MOST_STACKS) if lines else []


def _place(episode: Row) -> Row:
    return {name: episode[name] for name in EPISODE}


def _width(extent: Row, bins: int) -> int:
    """Return the steps per bin for at most `bins` bins."""
    return max(1, -(-(int(extent["last"]) - int(extent["first"]) + 1) // bins))


def _window_width(windows: Row) -> int:
    """Return the steps per bin of the heatmap: whole windows of steps."""
    count = max(1, int(windows["windows"]))
    per_window = max(1, round((int(windows["last"]) - int(windows["first"]) + 1) / count))
    return per_window * max(1, -(-count // WINDOW_BINS))
