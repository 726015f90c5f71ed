"""The data of a report, and the run that it is about."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from drumline.views.report import queries

Row = dict[str, Any]
Query = Callable[[str, Mapping[str, Any]], list[Row]]

#: Names that a message lists, and characters of each.
LISTED, LONGEST = 10, 60
_VIEW = re.compile(r"\bFROM stragglers\b( AS \w+)?")


class NoSuchRun(LookupError):
    """ClickHouse has no such job, run or time; the message names what it has."""


@dataclass(frozen=True)
class ReportData:
    """Holds rows with the columns that the queries name. Times: s, ms or us as the names state; UTC.

    `lateness` is of the latest ranks; `bands` of all of a large job, by the first of their `ranks`.
    """

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
    bands: list[Row]
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
        known = _listed([repr(row["job"]) for row in query(queries.JOBS, {}) if row["job"]])  # rows of hosts have none
        raise NoSuchRun(f"no job {job!r} is stored; " + (f"there are: {known}" if known else "nothing is stored yet"))
    chosen = next((row for row in runs if not run or row["run"] == run), None)
    if chosen is None:
        raise NoSuchRun(f"job {job!r} has no run {run!r}; there are: {_listed([row['run'] for row in runs])}")
    [labels] = query(queries.LABELS, {"job": job, "run": chosen["run"]})
    return {**chosen, **labels}, [row["run"] for row in runs if row is not chosen]


def verdicts_of(query: Query, run: Row) -> Query:
    """Return `query` for statements on the verdicts of `run` alone; their rows are those of the view `stragglers`.

    The view finds out for each row which evaluation is in force. To plan that costs ClickHouse as much as to read the
    rows of thousands of ranks, so those of a run with one evaluation come from the table. run: with the columns of
    RUNS. The result is as safe for several threads as `query` is, and raises its errors.
    """
    if int(run.get("evaluations", 2)) > 1:
        return query
    return lambda sql, parameters: query(from_table(sql), parameters)


def from_table(sql: str) -> str:
    """Return a statement that reads the newest versions of verdicts, of every evaluation."""
    return _VIEW.sub(r"FROM stragglers_versions\1 FINAL", sql)


def _listed(names: list[str]) -> str:
    """Return the newest names for a message, long ones cut."""
    shown = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names[:LISTED]]
    return ", ".join(shown) + (f" and {len(names) - LISTED} more" if len(names) > LISTED else "")
