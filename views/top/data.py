"""The data of `drumline top`: a few short queries a refresh, bounded whatever the size of the jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from drumline.infra.clickhouse.coverage import recent
from drumline.schemas.topics import Topic
from drumline.views.report.data import NoSuchRun, Query, Row, find_run
from drumline.views.report.queries import LABELS, LAST_RECORDS, first_episodes

# The newest run of each job, the most recent jobs first. Only records of producers count: a worker that restarts
# publishes results of jobs that ended long ago.
JOBS = f"""
SELECT job, argMax(j.run, h.last_record) AS run, argMax(j.ranks, h.last_record) AS ranks,
       argMax(j.hosts, h.last_record) AS hosts,
       argMax(j.kernels, h.last_record) AS kernels, argMax(j.dropped_rows, h.last_record) AS dropped_rows,
       toString(argMax(j.ended, h.last_record)) AS ended,
       dateDiff('millisecond', max(h.last_record), now64(3)) / 1000 AS age_s
FROM jobs AS j INNER JOIN ({LAST_RECORDS}) AS h USING (job, run)
WHERE {{job:String}} IN ('', job) GROUP BY job ORDER BY age_s, job LIMIT {{most:UInt32}}
"""

_RUN = "job = {job:String} AND run = {run:String}"
# The step that each rank has reached; and its step time on the GPU, of the steps that its lateness is of: those of the
# newest window. Without one, of the last minute of the run's own time.
STEPS = f"""
SELECT rank, anyLast(s.host) AS host, argMax(s.step, s.start) AS step,
       quantileExactInclusiveOrNullIf(0.5)(
           s.gpu_duration_ns, s.step BETWEEN {{first:Int64}} AND {{last:Int64}}) / 1e6 AS step_ms
FROM steps AS s WHERE {_RUN}
  AND start >= least(subtractSeconds({{ended:DateTime64(9, 'UTC')}}, 60), {{since:DateTime64(9, 'UTC')}})
  AND start >= {{attempt:DateTime64(9, 'UTC')}}
  AND skipped = 0 AND gpu_duration_ns > 0 GROUP BY rank ORDER BY rank
"""


def _newest_window(where: str) -> str:
    # Steps alone are compared too: the table is sorted by them.
    return f"""
WITH (SELECT max((attempt_start, first_step)) FROM stragglers WHERE {_RUN} AND severity >= 'ok') AS newest
SELECT rank, host, toString(s.window_start) AS since, first_step, last_step, severity, state, cause,
       detail, lost_share, toString(s.attempt_start) AS attempt,
       step_ns / 1e6 AS step_ms, lateness_ns / greatest(steps_used, 1) / 1e6 AS late_ms
FROM stragglers AS s WHERE {_RUN} AND first_step = newest.2 AND s.attempt_start = newest.1
{where}ORDER BY rank >= 0, lateness_ns DESC, rank LIMIT 4096
"""


# The newest window of steps: first -1, the job as a whole, then the latest ranks; and that of one rank.
WINDOW = _newest_window("")
RANK_WINDOW = _newest_window("AND rank = {rank:Int32} ")

VERDICTS = f"""
SELECT rank, host, started, first_step, last_step, state, cause, detail, evidence, lost_share, gpu_seconds
FROM ({first_episodes(_RUN, "max(last_step) DESC, sum(gpu_seconds_lost) DESC", "{most:UInt32}")})
ORDER BY last_step DESC, gpu_seconds DESC, rank, episode_first_step
"""

# Only while it stands still; `awaited`: the ranks that it waits for.
HANG = f"""
SELECT anyIf(h.state, h.rank = -1) AS state, anyIf(h.reason, h.rank = -1) AS reason, anyIf(h.note, h.rank = -1) AS note,
       dateDiff('second', minIf(h.start, h.rank = -1), now64(3)) AS seconds,
       arraySort(groupArrayIf(h.rank, h.rank >= 0)) AS awaited
FROM hangs_now AS h WHERE {_RUN} GROUP BY h.attempt_start, h.episode HAVING state IN ('standing', 'hung')
"""

# Whether its windows of steps could be evaluated lately.
COVERAGE = recent(_RUN, "{ended:DateTime64(9, 'UTC')}")

# late_rows counts from the start of a worker's windows on; the largest is the newest.
QUALITY = """
SELECT sum(r.dead_letters) AS dead, sum(r.duplicates) AS duplicates, sum(r.dropped_rows) AS dropped_rows
FROM records_per_minute AS r WHERE job = {job:String} AND run = {run:String}
"""
LATE = f"""
SELECT sum(late) AS late_rows FROM (
    SELECT max(late_rows) AS late FROM ledger
    WHERE topic IN ('{Topic.KERNEL_FREQUENCY}', '{Topic.MEMCPY_BANDWIDTH}')
        AND job = {{job:String}} AND run = {{run:String}}
    GROUP BY topic, process_id)
"""

JOBS_SHOWN, VERDICTS_SHOWN = 8, 6


@dataclass(frozen=True)
class Detail:
    """Holds one run: ranks, the newest window of steps, the newest verdicts, losses, and whether it stands still.

    attempts: see report/queries.py, LABELS. coverage: see clickhouse/coverage.py, as for world, unreported and
    unreported_ranks.
    """

    job: str
    run: str
    steps: list[Row] = field(default_factory=list)
    window: list[Row] = field(default_factory=list)
    verdicts: list[Row] = field(default_factory=list)
    dead: int = 0  # glossary: key of the JSON output
    duplicates: int = 0
    dropped_rows: int = 0
    late_rows: int = 0
    hang: list[Row] = field(default_factory=list)
    labels: Mapping[str, str] = field(default_factory=dict)
    attempts: list[tuple[int, str, int, int]] = field(default_factory=list)
    coverage: list[Row] = field(default_factory=list)
    world: int = 0
    unreported: list[int] = field(default_factory=list)
    unreported_ranks: int = 0


@dataclass(frozen=True)
class TopSnapshot:
    """Holds the jobs, newest data first, and details of the first or the selected one.

    missing: reason why a job that was named has no data.
    """

    jobs: list[Row]
    detail: Detail | None
    missing: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot as `drumline top --json` prints it."""
        return {"jobs": self.jobs, "detail": vars(self.detail) if self.detail else None}


def snapshot(query: Query, job: str, selected: str = "") -> TopSnapshot:
    """Query the jobs, or only `job`, and details of the `selected` one, else the first. Raises the query's errors.

    Two threads call `query` at a time: few of these queries keep more than one core of the server busy.
    """
    jobs = query(JOBS, {"job": job, "most": JOBS_SHOWN})
    if not jobs:
        return TopSnapshot([], None, _missing(query, job) if job else "")
    chosen = next((row for row in jobs if row["job"] == selected), jobs[0])
    scope = {"job": chosen["job"], "run": chosen["run"]}
    remainder = _meanwhile(lambda: _remainder(query, scope, chosen["ended"]))
    window = query(WINDOW, scope)
    steps_of_all = {"first_step": -(1 << 63), "last_step": (1 << 63) - 1}
    unbounded = {"since": chosen["ended"], **steps_of_all, "attempt": "1970-01-01"}
    newest = window[0] if window else unbounded
    times = {
        "ended": chosen["ended"], "since": newest["since"], "first": newest["first_step"], "last": newest["last_step"],
        "attempt": newest["attempt"],
    }  # fmt: skip
    steps = query(STEPS, {**scope, **times})
    return TopSnapshot(jobs, Detail(**scope, steps=steps, window=window, **remainder.result()))


def _remainder(query: Query, scope: Row, ended: str) -> Row:
    """Return the fields of a Detail that do not depend on the newest window."""
    return {
        "verdicts": query(VERDICTS, {**scope, "most": VERDICTS_SHOWN}),
        "hang": query(HANG, scope),
        "coverage": query(COVERAGE, {**scope, "ended": ended}),
        **query(LABELS, scope)[0],
        **query(QUALITY, scope)[0],
        **query(LATE, scope)[0],
    }


def _meanwhile(load: Callable[[], Row]) -> Future[Row]:
    """Run `load` beside the caller's queries. A daemon thread, so that Ctrl-C does not wait for its answers."""
    future: Future[Row] = Future()

    def run() -> None:
        try:
            future.set_result(load())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


def _missing(query: Query, job: str) -> str:
    try:
        find_run(query, job, "")
    except NoSuchRun as reason:
        return str(reason)
    return ""
