"""The fleet page: the newest run of each job, those that need somebody first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.views.report.data import Query, Row
from drumline.views.report.text import LEVELS
from drumline.views.serve import queries
from drumline.views.top.data import JOBS

#: Jobs on the page: those with the newest data.
MOST_JOBS = 100
#: Time without a record after which a job counts as ended; s.
ENDED_S = 120.0


@dataclass(frozen=True)
class FleetJob:
    """The newest run of a job. `now`: worst rank of its newest window of steps; `costliest`: that of the run;
    named: ranks that cost something. labels: of `drumline run`.

    level: "hung", "standing", the alarm in force, "ok", "unknown" (no window could be evaluated), or "ended".
    """

    job: str
    run: str
    ranks: int
    hosts: int
    age_s: float
    dropped_rows: int
    level: str
    hang: Row | None
    now: Row | None
    costliest: Row | None
    gpu_seconds: float
    named: int
    labels: Mapping[str, str]

    @property
    def has_ended(self) -> bool:
        """Return whether its producers have sent nothing for a while, and it does not stand still."""
        return self.level == "ended"


#: Worst first.
ORDER = ("hung", "standing", *reversed(LEVELS), "unknown", "ok", "ended")
_SORTS: dict[str, Callable[[FleetJob], Any]] = {
    "state": lambda job: (ORDER.index(job.level), job.age_s if job.has_ended else 0, -job.gpu_seconds, job.job),
    "job": lambda job: job.job,
    "ranks": lambda job: (-job.ranks, job.job),
    "lost": lambda job: (-job.gpu_seconds, job.job),
    "data": lambda job: (job.age_s, job.job),
}
SORTS = tuple(_SORTS)


def fleet(query: Query, sort: str = "state", labels: Mapping[str, str] | None = None) -> list[FleetJob]:
    """Return the jobs that have these labels, in the order of a column of SORTS. Raises the query's errors."""
    rows = query(JOBS, {"job": "", "most": MOST_JOBS})
    if not rows:
        return []
    names = {"jobs": [row["job"] for row in rows], "runs": [row["run"] for row in rows]}
    costs, now, labelled, hangs = (
        {(row["job"], row["run"]): row for row in query(sql, values)}
        for sql, values in (
            (queries.FLEET_COSTS, names), (queries.FLEET_NOW, names), (queries.FLEET_LABELS, names),
            (queries.FLEET_HANGS, {}),
        )
    )  # fmt: skip
    runs = [(row, (row["job"], row["run"])) for row in rows]
    jobs = [_job(row, costs.get(run), now.get(run), hangs.get(run), labelled.get(run)) for row, run in runs]
    jobs = [job for job in jobs if (labels or {}).items() <= job.labels.items()]
    return sorted(jobs, key=_SORTS.get(sort, _SORTS["state"]))


def _job(row: Row, cost: Row | None, newest: Row | None, hang: Row | None, labelled: Row | None) -> FleetJob:
    now = costliest = None
    if newest:
        now = dict(zip(("rank", "host", "state", "cause", "detail", "lost_share"), newest["now"], strict=True))
    if cost and cost["gpu_seconds"] > 0:
        costliest = dict(zip(("rank", "host", "cause", "detail"), cost["costliest"], strict=True))
    if hang:
        level = hang["state"]
    elif row["age_s"] > ENDED_S:
        level = "ended"
    elif now is None:
        level = "unknown"
    else:
        level = now["state"] if now["state"] in LEVELS else "ok"
    return FleetJob(
        row["job"], row["run"], int(row["ranks"]), int(row["hosts"]), max(0.0, row["age_s"]), int(row["dropped_rows"]),
        level, hang, now, costliest, float(cost["gpu_seconds"]) if cost else 0.0,
        int(cost["named"]) if cost else 0, labelled["labels"] if labelled else {},
    )  # fmt: skip
