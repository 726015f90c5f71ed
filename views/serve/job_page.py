"""The page of a job: its run, its ranks with the worst first, and what the report shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from drumline.views.report import queries
from drumline.views.report.data import Query, ReportData, Row, verdicts_of
from drumline.views.report.loading import Arrived, load, rows_of, side_by_side
from drumline.views.report.text import LEVELS, by_rank
from drumline.views.serve.fleet import ENDED_S
from drumline.views.serve.runs.headline import Headline, headline
from drumline.views.serve.timeline import LATE_RANKS, PEERS
from drumline.views.top.data import JOBS, WINDOW

#: Levels of a rank, the worst last: a job that waits for it costs all of its GPUs.
_LEVELS = (*LEVELS, "standing", "hung")
#: Ranks in the table, without `?ranks=all`.
MOST_RANKS = 32


@dataclass(frozen=True)
class RankLine:
    """A rank of the table. `now`: row of the newest window of steps; `cost`, `cause`: of the run; `episodes`: count.

    level: "hung" or "standing" where the job waits for it, else the alarm in force; "" = none is known.
    """

    rank: int
    host: str
    now: Row | None
    level: str
    gpu_seconds: float
    lost_s: float
    cause: str
    detail: str
    episodes: int


@dataclass(frozen=True)
class JobPage:
    """Holds what the page of a job shows. `bad_step`: number and rank of the step to look at; None without one.

    `state`: of the whole run, whatever part of it is shown.
    """

    data: ReportData
    ranks: list[RankLine]
    window: Row | None
    bad_step: tuple[int, int] | None
    is_live: bool
    state: Headline

    def some_ranks(self) -> list[int]:
        """Return the worst ranks and some of the best, as many as a step is drawn of."""
        ranks = [line.rank for line in self.ranks]
        return ranks[:LATE_RANKS] + ranks[LATE_RANKS:][-PEERS:]


def job_page(
    query: Query, job: str, run: str, since: str, until: str, price: float, arrived: Arrived, deep: bool = True
) -> JobPage:
    """Load the page. Several threads call `query`. `arrived`, `deep`: as of `load`. Raises NoSuchRun and the query's
    errors.
    """
    data = load(query, job, run, since, until, price, arrived, deep)
    with side_by_side(query) as later:
        newest = later(rows_of, JOBS, {"job": job, "most": 1})
        window = rows_of(verdicts_of(query, data.run), WINDOW, {"job": job, "run": data.run["run"]})
        live = _is_newest_alive(newest.result(), data.run["run"])
        of_run = {"job": job, "run": data.run["run"], "since": data.run["started"], "until": data.run["ended"]}
        hangs = data.hangs if data.whole else rows_of(query, queries.HANGS, of_run)
    whole = next((row for row in window if row["rank"] == -1), None)
    state = headline(data.run, live, hangs)
    return JobPage(data, _ranks(data, window, live), whole, bad_step(data.episodes), live, state)


def is_live(query: Query, job: str, run: str) -> bool:
    """Return whether a run is the newest of its job and its producers send data. Raises the query's errors."""
    return _is_newest_alive(query(JOBS, {"job": job, "most": 1}), run)


def _is_newest_alive(rows: list[Row], run: str) -> bool:
    return bool(rows) and rows[0]["run"] == run and rows[0]["age_s"] < ENDED_S


def _ranks(data: ReportData, window: list[Row], live: bool) -> list[RankLine]:
    now = {row["rank"]: row for row in window if row["rank"] >= 0}
    costs = {row["rank"]: row for row in by_rank(data) if row["rank"] >= 0}
    awaited = {rank: row["state"] for row in data.hangs for rank in row["awaited"]}
    episodes: dict[int, list[Row]] = {}
    for episode in data.episodes:
        episodes.setdefault(episode["rank"], []).append(episode)
    lines = []
    for rank in now.keys() | costs.keys() | awaited.keys():
        row, cost = now.get(rank), costs.get(rank)
        named = episodes.get(rank, [])
        worst = named[0] if named else {}  # the most expensive
        lines.append(
            RankLine(
                rank=rank,
                host=(row or cost or {}).get("host", ""),
                now=row,
                level=str(awaited.get(rank) or (row["state"] if row else "")),
                gpu_seconds=cost["gpu_seconds"] if cost else 0.0,
                lost_s=cost["lost_s"] if cost else 0.0,
                cause=worst.get("cause", ""),
                detail=worst.get("detail", ""),
                episodes=len(named),
            )
        )
    # After the end of a run its last window is no more than any other.
    live = live or bool(awaited)
    return sorted(lines, key=lambda line: (-_level(line) if live else 0, -line.gpu_seconds, -_late(line), line.rank))


def _level(line: RankLine) -> int:
    return _LEVELS.index(line.level) if line.level in _LEVELS else -1


def _late(line: RankLine) -> float:
    return float(line.now["late_ms"]) if line.now else 0.0


def bad_step(episodes: list[Row], rank: int | None = None) -> tuple[int, int] | None:
    """Return the step and rank of the most expensive episode's evidence, else the begin of that episode."""
    worst = next((row for row in episodes if row["rank"] >= 0 and rank in (None, row["rank"])), None)
    if worst is None:
        return None
    try:
        values: Any = json.loads(worst["evidence"])
        step = values["collective"]["step"]
    except (ValueError, KeyError, TypeError):
        step = worst["first_step"]
    return (int(step), worst["rank"]) if isinstance(step, int) else (worst["first_step"], worst["rank"])
