"""The deep window of a verdict: its steps, and what the late rank did in it that healthy ranks did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from drumline.infra.clickhouse.queries import query as named_query

if TYPE_CHECKING:
    from drumline.views.report.data import Query, Row

#: Question that compares the rank with its peers.
QUESTION = "verdict-window"
#: Columns that tell an episode from others of its run; the key of verdicts begins with steps.
EPISODE = ("rank", "first_step", "last_step", "started", "ended")
#: Differences that are named beside the clock's, the largest ones.
NAMED = 3

_UTC = "DateTime64(9, 'UTC')"
_RANK = "job = {job:String} AND run = {run:String} AND rank = {rank:Int32}"
# Where the rank became late in an episode, and the rank's steps in the time that the question compares. A row in any
# case; `begins` is not behind `asked` where no kernel is stored.
WINDOW = f"""
WITH
    (SELECT argMin((first_step, window_end), window_end) FROM stragglers WHERE {_RANK}
        AND first_step BETWEEN {{first_step:Int64}} AND {{last_step:Int64}} AND changed
        AND severity >= 'warning' AND window_start >= {{started:{_UTC}}} AND window_end <= {{ended:{_UTC}}}) AS late,
    (SELECT min(start) FROM kernels WHERE {_RANK} AND start > late.2
        AND start <= late.2 + toIntervalSecond({{seconds:UInt32}})) AS low,
    (SELECT max(end_time) FROM kernels WHERE {_RANK} AND start >= low
        AND start <= low + toIntervalSecond({{length:UInt32}})) AS high
SELECT late.1 AS verdict_step, late.1 >= 0 AND low > late.2 AND toUnixTimestamp64Nano(late.2) > 0 AS is_recorded,
       dateDiff('millisecond', late.2, low) / 1e3 AS after_s, count() AS steps, min(step) AS first, max(step) AS last
FROM steps WHERE {_RANK} AND step >= 0 AND start >= low AND end_time <= high
"""


@dataclass(frozen=True, slots=True)
class DeepWindow:
    """Holds what is stored of the window that a verdict asked for.

    `verdict_step`: first step of the verdict's window of steps. `after_s`: from its end to the first kernel.
    `first_step`, `last_step`: whole steps of the rank in it, -1 = none. `differences`: texts, the largest first.
    """

    verdict_step: int
    after_s: float
    first_step: int
    last_step: int
    differences: tuple[str, ...]

    def text(self) -> str:
        """Return where it is and what differs, as one sentence."""
        steps = f"steps {self.first_step} to {self.last_step}, " if self.first_step >= 0 else ""
        return f"{steps}{self.after_s:.0f} s after the verdict's: {'; '.join(self.differences) or 'no peer recorded'}"


def deep_window(query: Query, place: Mapping[str, Any]) -> DeepWindow | None:
    """Return the deep window of an episode, None where no kernel of its rank is stored behind the verdict.

    place: job, run, rank, first_step, last_step, started and ended of the episode. Raises the query's ClickHouseFailed.
    """
    question = named_query(QUESTION)
    fixed = {name: int(value) for name, value in question.values({"job": ""}).items() if name in ("seconds", "length")}
    scope = {name: place[name] for name in ("job", "run", *EPISODE)}
    row = next(iter(query(WINDOW, {**scope, **fixed})), None)
    if row is None or not row["is_recorded"]:
        return None
    given = {name: str(scope[name]) for name in ("job", "run", "rank")} | {"first_step": str(row["verdict_step"])}
    rows = query(question.sql, question.values(given))
    clocks = [part for part in rows if part["unit"] == "MHz"]
    works = [part for part in rows if part["unit"] != "MHz"][:NAMED]
    return DeepWindow(
        verdict_step=int(row["verdict_step"]),
        after_s=float(row["after_s"]),
        first_step=int(row["first"]) if row["steps"] else -1,
        last_step=int(row["last"]) if row["steps"] else -1,
        differences=tuple(_text(part) for part in (*works, *clocks) if part["peers"]),
    )


def _text(part: Row) -> str:
    if part["unit"] == "MHz":
        return f"SM clock {part['of_rank']:,.0f} MHz (healthy: {part['of_peers']:,.0f})"
    return f"{part['what']} {part['of_rank']:,.0f} ms of each second (healthy: {part['of_peers']:,.0f})"
