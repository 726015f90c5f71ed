"""The page of a rank: its verdicts with what to do, its GPU, its host, and its kernels, all beside its peers."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.infra.guidance.entry import Entry
from drumline.infra.guidance.hangs import hang_guidance
from drumline.infra.report import charts
from drumline.infra.report import queries as report_queries
from drumline.infra.report.data import NoSuchRun, Query, Row
from drumline.infra.report.explanation import Explanation, explain
from drumline.infra.report.loading import WINDOW_BINS
from drumline.infra.report.page import DEVICES
from drumline.infra.serve import queries
from drumline.infra.serve.job_page import bad_step
from drumline.infra.top.data import WINDOW

#: Parts of a step with the same names as in the timeline: (column, text).
PARTS = (("compute_ms", "compute"), ("copy_ms", "copies"), ("communication_ms", "communication"), ("idle_ms", "idle"))


@dataclass(frozen=True)
class RankPage:
    """Holds what the page of a rank shows. Rows of pairs: the rank first, its peers' mean or middle second."""

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


def rank_page(query: Query, job: str, run: str, rank: int, since: str, until: str) -> RankPage:
    """Load the page. Raises NoSuchRun and the query's errors."""
    explained = explain(query, job, run, rank, since, until)
    chosen, episodes = explained.run, explained.episodes
    name = chosen["run"]
    scope = {"job": job, "run": name, "since": since or chosen["started"], "until": until or chosen["ended"]}
    rank_scope = {**scope, "rank": rank}
    process = next(iter(query(queries.PROCESS, {"job": job, "run": name, "rank": rank})), None)
    window = next((row for row in query(WINDOW, {"job": job, "run": name}) if row["rank"] == rank), None)
    if process is None and window is None and not episodes:
        raise NoSuchRun(f"job {job!r} has no rank {rank} in run {name!r}; it has {chosen['ranks']} ranks")
    worst = next(iter(episodes), None)
    # The time of the worst verdict: means over a whole run would hide it.
    moment = {**rank_scope, "since": worst["started"], "until": worst["ended"]} if worst else rank_scope
    steps = {"first": worst["first_step"], "last": worst["last_step"]} if worst else {"first": 0, "last": 1 << 62}
    [extent] = query(report_queries.EXTENT, {**scope, "started": chosen["started"], "ended": chosen["ended"]})
    length_ns = max(int(extent["ns"]), 1)
    hangs = query(queries.RANK_HANGS, {"job": job, "run": name, "rank": rank})
    return RankPage(
        job, chosen, rank, scope["since"], scope["until"], not since and not until, process,
        next(iter(explained.texts), None), explained.windows, window, episodes, explained.stacks,
        [(row, hang_guidance(row["reason"])) for row in hangs],
        _pair(query(queries.BUDGET, {**moment, **steps})),
        query(queries.KERNELS, {**moment, "peers": max(1, int(chosen["ranks"]) - 1)}),
        _pair(query(queries.HOST, moment)),
        _devices(query(queries.DEVICE_TIMES, {**rank_scope, "length_ns": length_ns, "bins": WINDOW_BINS}), rank,
                 length_ns / 1e9),
        bad_step(episodes, rank),
    )  # fmt: skip


def _pair(rows: list[Row]) -> list[Row]:
    """Return the row of the rank, and that of its peers if there are any; [] without the rank's."""
    return rows if rows and rows[0]["this"] else []


def _devices(rows: list[Row], rank: int, length_s: float) -> dict[str, charts.Spec]:
    names = (f"rank {rank}", "mean of its peers")
    drawn = {}
    for column, (unit, caption) in DEVICES.items():
        values = [
            {"second": row["second"], "value": row[column], "series": names[row["series"]], "rank": row["series"]}
            for row in rows if row[column] is not None
        ]  # fmt: skip
        if (spec := charts.over_time(values, length_s, unit, zero=column == "util")) is not None:
            drawn[caption] = spec
    return drawn
