"""The data of a report, loaded for one run and span of time. ClickHouse computes all that it can."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.infra.clickhouse.queries import query as named_query
from drumline.infra.report import queries
from drumline.infra.report.deep_window import deep_window
from drumline.infra.report.link_state import CAUSE, link_evidence

Row = dict[str, Any]
Query = Callable[[str, Mapping[str, Any]], list[Row]]

#: Limits of a plot: bins of steps or time, ranks.
BINS, WINDOW_BINS, RANKS = 300, 120, 64
#: Lines of a chart that colours can distinguish.
SERIES = 8
#: Names that a message lists, and characters of each.
LISTED, LONGEST = 10, 60
#: Rows of the question stalls that are looked at, and the least share of a kernel's samples that is listed; %.
MOST_STALLS, LEAST_STALL = 500, 10.0
#: Stacks of the flame graph.
MOST_STACKS = 1_000
#: Episodes whose deep window is compared: a job has one in ten minutes at the most, and each is a second of ClickHouse.
DEEP = 3


class NoSuchRun(LookupError):
    """ClickHouse has no such job, run or time; the message names what it has."""


@dataclass(frozen=True)
class ReportData:
    """Holds rows with the columns that the queries name. Times: s, ms or us as the names state; UTC."""

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
    hangs: list[Row]
    stacks: list[Row]
    cost: list[Row]
    lateness: list[Row]
    kernels: list[Row]
    families: list[Row]
    memcpys: list[Row]
    hot_lines: list[Row]
    hot_stacks: list[Row]
    stalls: list[Row]
    devices: list[Row]
    device_times: list[Row]
    records: Row
    price_per_gpu_hour: float

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return int(self.run["ranks"])


def find_run(query: Query, job: str, run: str) -> tuple[Row, list[str]]:
    """Return the run, by default the newest, with its labels, and the names of the other runs. Raises NoSuchRun."""
    runs = query(queries.RUNS, {"job": job})
    if not runs:
        known = _listed([repr(row["job"]) for row in query(queries.JOBS, {})])
        raise NoSuchRun(f"no job {job!r} is stored; " + (f"there are: {known}" if known else "nothing is stored yet"))
    chosen = next((row for row in runs if not run or row["run"] == run), None)
    if chosen is None:
        raise NoSuchRun(f"job {job!r} has no run {run!r}; there are: {_listed([row['run'] for row in runs])}")
    [labels] = query(queries.LABELS, {"job": job, "run": chosen["run"]})
    return {**chosen, **labels}, [row["run"] for row in runs if row is not chosen]


def _listed(names: list[str]) -> str:
    """Return names for a message: the newest, and of long ones the begin."""
    shown = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names[:LISTED]]
    return ", ".join(shown) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")


def load(query: Query, job: str, run: str, since: str, until: str, price_per_gpu_hour: float) -> ReportData:
    """Load all data of the report.

    `since` and `until` are written as DateTime64(9, 'UTC'); "" stands for the run's begin and end. Raises NoSuchRun,
    and the query's ClickHouseFailed.
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
    steps, windows = query(queries.STEPS_EXTENT, scope)[0], query(queries.WINDOWS, scope)[0]
    bins = {"first": steps["first"], "width": _width(steps, BINS)}
    window_bins = {"first": windows["first"], "width": _window_width(windows), "ranks": RANKS}
    episodes = query(queries.EPISODES, scope)
    for row in [row for row in episodes if row["cause"] == CAUSE][:LISTED]:
        row["links"] = link_evidence(query, scope | _place(row))
    for row in [row for row in episodes if row["rank"] >= 0 and row["state"] != "suspect"][:DEEP]:
        row["deep"] = deep_window(query, scope | _place(row))
    return ReportData(
        job=job,
        run=chosen,
        other_runs=other_runs,
        **span,
        length_s=length_ns / 1e9,
        whole=not since and not until,
        steps=steps,
        step_times=query(queries.STEPS, {**scope, **bins}),
        windows=windows,
        episodes=episodes,
        hangs=query(queries.HANGS, scope),
        stacks=query(queries.STACKS, scope),
        cost=query(queries.COST, scope),
        lateness=query(queries.LATENESS, {**scope, **window_bins}),
        kernels=query(queries.KERNELS, scope),
        families=query(queries.FAMILIES, scope),
        memcpys=query(queries.MEMCPYS, scope),
        hot_lines=(hot_lines := _hot_lines(query, scope, price_per_gpu_hour)),
        hot_stacks=_hot_lines(query, scope, 0.0, "stack", MOST_STACKS) if hot_lines else [],
        stalls=_stalls(query, scope),
        devices=(devices := query(queries.DEVICES, scope)),
        device_times=query(
            queries.DEVICE_TIMES if len({row["rank"] for row in devices}) <= SERIES else queries.DEVICE_SPREAD,
            {**scope, "length_ns": length_ns, "bins": WINDOW_BINS},
        ),
        records=query(queries.RECORDS, scope)[0],
        price_per_gpu_hour=price_per_gpu_hour,
    )


def _stalls(query: Query, scope: Row) -> list[Row]:
    """Return what the warps of the kernels with most samples waited for most; [] where no window sampled the GPU."""
    question = named_query("stalls")
    given = {name: str(scope[name])[:23] for name in ("since", "until")} | {"job": scope["job"], "run": scope["run"]}
    rows = query(question.sql, question.values({**given, "limit": str(MOST_STALLS)}))
    return [row for row in rows if row["percent"] >= LEAST_STALL][:LISTED]


def _hot_lines(query: Query, scope: Row, price: float, by: str = "line", most: int = LISTED) -> list[Row]:
    """Return the lines or stacks that launched most GPU time, of deep windows; [] where none recorded launches."""
    question = named_query("hot-lines")
    given = {name: str(scope[name])[:23] for name in ("since", "until")} | {"job": scope["job"], "run": scope["run"]}
    return query(question.sql, question.values({**given, "price": str(price), "by": by, "limit": str(most)}))


def _place(episode: Row) -> Row:
    return {name: episode[name] for name in ("rank", "started", "ended")}


def _width(extent: Row, bins: int) -> int:
    """Return the steps per bin for at most `bins` bins."""
    return max(1, -(-(int(extent["last"]) - int(extent["first"]) + 1) // bins))


def _window_width(windows: Row) -> int:
    """Return the steps per bin of the heatmap: whole windows of steps."""
    count = max(1, int(windows["windows"]))
    per_window = max(1, round((int(windows["last"]) - int(windows["first"]) + 1) / count))
    return per_window * max(1, -(-count // WINDOW_BINS))
