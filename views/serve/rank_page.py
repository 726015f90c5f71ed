"""The page of a rank: its verdicts with what to do, its GPU, its host, and its kernels, all beside its peers."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.infra.guidance.entry import Entry
from drumline.infra.guidance.hangs import hang_guidance
from drumline.views.report import charts
from drumline.views.report import queries as report_queries
from drumline.views.report.data import NoSuchRun, Query, Row, find_run
from drumline.views.report.explanation import Explanation, explain
from drumline.views.report.loading import MOST_STEPS, WINDOW_BINS, rows_of, side_by_side
from drumline.views.report.page import DEVICES
from drumline.views.serve import queries
from drumline.views.serve.job_page import bad_step
from drumline.views.top.data import RANK_WINDOW

#: Parts of a step with the same names as in the timeline: (column, text).
PARTS = (("compute_ms", "compute"), ("copy_ms", "copies"), ("communication_ms", "communication"), ("idle_ms", "idle"))


@dataclass(frozen=True)
class RankPage:
    """Holds what the page of a rank shows. Rows of pairs: the rank first, its peers' mean or middle second.

    peers: how many of them stand for all in a large run; 0 = all are read.
    """

    job: str
    run: Row
    rank: int
    since: str
    until: str
    whole: bool
    process: Row | None
    explanation: Explanation | None
    windows: Row
    window: Row | None
    episodes: list[Row]
    stacks: list[Row]
    hangs: list[tuple[Row, Entry | None]]
    budget: list[Row]
    kernels: list[Row]
    host: list[Row]
    devices: dict[str, charts.Spec]
    bad_step: tuple[int, int] | None
    peers: int


def rank_page(query: Query, job: str, run: str, rank: int, since: str, until: str) -> RankPage:
    """Load the page. Several threads call `query`. Raises NoSuchRun and the query's errors."""
    chosen, _ = find_run(query, job, run)
    name = chosen["run"]
    scope = {"job": job, "run": name, "since": since or chosen["started"], "until": until or chosen["ended"]}
    this = {"job": job, "run": name, "rank": rank}
    rank_scope = {**scope, "rank": rank}
    with side_by_side(query) as later:
        explaining = later(explain, job, name, rank, since, until)
        processes = later(rows_of, queries.PROCESS, this)
        latest = later(rows_of, RANK_WINDOW, this)
        hangs = later(rows_of, queries.RANK_HANGS, this)
        is_large = int(chosen["steps"]) > MOST_STEPS and int(chosen["ranks"]) > queries.MOST_RANKS
        sample = later(rows_of, queries.SOME_RANKS, this).result() if is_large else []
        few = {"ranks": [row["rank"] for row in sample]} if sample else {}
        devices = later(_devices, rank_scope | few, chosen)
        explained = explaining.result()
        episodes = explained.episodes
        process = next(iter(processes.result()), None)
        window = next(iter(latest.result()), None)
        if process is None and window is None and not episodes:
            raise NoSuchRun(f"job {job!r} has no rank {rank} in run {name!r}; it has {chosen['ranks']} ranks")
        worst = next(iter(episodes), None)
        # The time of the worst verdict: means over a whole run would hide it.
        moment = {**rank_scope, "since": worst["started"], "until": worst["ended"]} if worst else rank_scope
        steps = {"first": worst["first_step"], "last": worst["last_step"]} if worst else {"first": 0, "last": 1 << 62}
        budget_sql, host_sql = (queries.BUDGET_OF_SOME, queries.HOST_OF_SOME) if few else (queries.BUDGET, queries.HOST)
        budget = later(rows_of, budget_sql, moment | steps | few)
        kernels = later(rows_of, queries.KERNELS, {**moment, "peers": max(1, int(chosen["ranks"]) - 1)})
        host = later(rows_of, host_sql, moment | few)
        return RankPage(
            job, chosen, rank, scope["since"], scope["until"], not since and not until, process,
            next(iter(explained.texts), None), explained.windows, window, episodes, explained.stacks,
            [(row, hang_guidance(row["reason"])) for row in hangs.result()],
            _pair(budget.result()), kernels.result(), _pair(host.result()), devices.result(),
            bad_step(episodes, rank), max(0, len(sample) - 1),
        )  # fmt: skip


def _pair(rows: list[Row]) -> list[Row]:
    """Return the row of the rank, and that of its peers if there are any; [] without the rank's."""
    return rows if rows and rows[0]["this"] else []


def _devices(query: Query, scope: Row, run: Row) -> dict[str, charts.Spec]:
    """Return the charts of the rank's GPU beside its peers', by caption. `scope` has `ranks` where these are some."""
    [extent] = query(report_queries.EXTENT, {**scope, "started": run["started"], "ended": run["ended"]})
    length_ns = max(int(extent["ns"]), 1)
    sql = queries.DEVICE_TIMES_OF_SOME if "ranks" in scope else queries.DEVICE_TIMES
    rows = query(sql, {**scope, "length_ns": length_ns, "bins": WINDOW_BINS})
    names = (f"rank {scope['rank']}", "mean of its peers")
    drawn = {}
    for column, (unit, caption) in DEVICES.items():
        values = [
            {"second": row["second"], "value": row[column], "series": names[row["series"]], "rank": row["series"]}
            for row in rows if row[column] is not None
        ]  # fmt: skip
        if (spec := charts.over_time(values, length_ns / 1e9, unit, zero=column == "util")) is not None:
            drawn[caption] = spec
    return drawn
