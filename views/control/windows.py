"""Deep windows as `drumline capture` asks for them: steps that lie ahead, and what came of it so far. Pure but queries.

Kafka and ClickHouse are the caller's.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from drumline.producers.control.steps_ahead import LEAD_S, steps_ahead
from drumline.schemas.control import MAX_WINDOW_NS, WINDOW, Control, exact, with_peer
from drumline.views.control.control_topic import user_name
from drumline.views.report.data import Query, Row

#: A clock of a host that is this much behind does not delay the begin; s.
CLOCKS_S = 60.0
#: Longest time for which a sink collects rows, and a second; s.
COLLECTED_S = 11.0
ACCEPTED, RUNNING, DONE, REJECTED = "accepted", "running", "done", "rejected"
#: Answers in the order in which they come.
ANSWERS = ("", ACCEPTED, RUNNING, DONE, REJECTED)

_RUN = "job = {job:String} AND run = {run:String}"
NEWEST = f"""
SELECT argMax(step, start) AS last, quantileExact(0.5)(duration_ns) AS step_ns,
       dateDiff('millisecond', max(end_time), now64(3)) / 1e3 AS age_s
FROM steps WHERE {_RUN} AND step >= 0 AND duration_ns > 0 AND start > now64(3) - 60 HAVING count() > 0
"""
CULPRIT = f"""
SELECT rank, host, s.severity >= 'suspect' AS is_late, s.lost_ns AS lost_ns,
       JSONExtract(evidence_json, 'peers', 'Array(Int32)') AS peers FROM stragglers AS s
WHERE {_RUN} AND rank >= 0 AND (s.attempt_start, first_step) = (
    SELECT max((attempt_start, first_step)) FROM stragglers WHERE {_RUN} AND severity >= 'ok'
) ORDER BY is_late DESC, lost_ns DESC, rank
"""
PROCESSES = f"""
SELECT rank, any(host) AS host, groupArray(collector['control']) AS answers FROM processes
WHERE {_RUN} AND rank >= 0 AND pid > 0 GROUP BY rank ORDER BY rank
"""
_SINCE = "start >= fromUnixTimestamp64Nano({since:Int64})"
_NS = "toInt64(toUnixTimestamp64Nano(max(start)))"
_OF_RUN = f"WHERE {_RUN} AND {_SINCE}"
_WANTED = f"{_OF_RUN} AND step BETWEEN {{first:Int64}} AND {{last:Int64}}"
#: What shows that rows come, at little cost: it is asked often.
COUNTS = f"SELECT rank, count() AS kernels FROM kernels {_OF_RUN} GROUP BY rank"
# A step counts where a kernel of its rank begins in it: a rank that switches on late, or loses records, has fewer.
ROWS = f"""
SELECT rank, sum(k) AS kernels, sum(c) AS copies, sum(l) AS launches, sum(s) AS steps, sum(p) AS stacks,
       sum(g) AS samples, max(newest) >= max(begun) AND max(begun) > 0 AS is_whole
FROM (
    SELECT rank, count() AS k, 0 AS c, 0 AS l, 0 AS s, 0 AS p, 0 AS g, {_NS} AS newest, 0 AS begun
        FROM kernels {_OF_RUN} GROUP BY rank
    UNION ALL SELECT rank, 0, count(), 0, 0, 0, 0, 0, 0 FROM memcpys {_OF_RUN} GROUP BY rank
    UNION ALL SELECT rank, 0, 0, count(), 0, countIf(sampled > 0), 0, 0, 0 FROM launches {_OF_RUN} GROUP BY rank
    UNION ALL SELECT rank, 0, 0, 0, 0, 0, sum(samples), 0, 0 FROM stalls {_OF_RUN} GROUP BY rank
    UNION ALL SELECT rank, 0, 0, 0, 0, 0, 0, 0, if(max(step) = {{last:Int64}}, {_NS}, 0)
        FROM steps {_WANTED} GROUP BY rank
    UNION ALL SELECT k.rank, 0, 0, 0, uniqExact(s.step), 0, 0, 0, 0
        FROM (SELECT rank, start FROM kernels {_OF_RUN}) AS k
        ASOF INNER JOIN (SELECT rank, step, start, end_time FROM steps {_WANTED}) AS s
        ON k.rank = s.rank AND k.start >= s.start WHERE k.start < s.end_time GROUP BY k.rank
) GROUP BY rank
"""


class CannotCapture(ValueError):
    """The window that is asked for cannot be; the message states why, and what can be."""


def kinds_of(text: str, ranks: Sequence[int]) -> frozenset[str]:
    """Return what `--with` asks for, of these ranks ([] = all). Raises CannotCapture."""
    wanted = frozenset(kind.strip() for kind in text.split(","))
    if "kernels" not in wanted or wanted - {"kernels", "launches", "stacks", "pc"}:
        raise CannotCapture(f"--with {text!r}: kernels, or kernels,launches,stacks, or kernels,pc")
    if "pc" in wanted and len(wanted) > 2:
        raise CannotCapture(f"--with {text!r}: pc stands beside kernels only; ask for two windows, one after the other")
    if "pc" in wanted and len(ranks) != 1:
        raise CannotCapture(f"--with {text!r} samples one GPU: name its rank, as --ranks 3")
    return wanted


@dataclass(frozen=True)
class RankState:
    """Holds the answer of a rank, and the number of rows that are stored of it since the question.

    `steps`: those that were wanted, with kernels. `stacks`: launches with one. `is_whole`: the last step is stored, and
    kernels behind its begin.
    """

    rank: int
    host: str
    answer: str
    reason: str
    kernels: int
    copies: int
    steps: int
    stacks: int
    is_whole: bool = False
    launches: int = 0
    samples: int = 0

    @property
    def is_over(self) -> bool:
        """Return whether nothing more is recorded for the window."""
        return self.answer in (DONE, REJECTED)


def culprit(query: Query, job: str, run: str) -> list[int]:
    """Return the rank that cost most in the newest window of steps, and a healthy one of its communicator or host.

    Raises CannotCapture.
    """
    rows = query(CULPRIT, {"job": job, "run": run})
    if not rows or not rows[0]["is_late"]:
        raise CannotCapture("no rank is late in the newest window of steps: name --ranks, or none for all")
    healthy = [(row["rank"], row["host"]) for row in rows if not row["is_late"]]
    return with_peer(rows[0]["rank"], rows[0]["host"], healthy, rows[0]["peers"])


def window_of_steps(
    query: Query, job: str, run: str, ranks: Sequence[int], steps: int, now_ns: int, lead_s: float = LEAD_S
) -> Control:
    """Return a window of so many steps, the same on all ranks, that begins in `lead_s`. Raises CannotCapture."""
    newest = next(iter(query(NEWEST, {"job": job, "run": run})), None)
    if newest is None:
        raise CannotCapture(
            "the job does not run now, or not in steps: none was stored in the last minute; --seconds needs no steps"
        )
    step_s = newest["step_ns"] / 1e9
    first, length_s = steps_ahead(newest["last"], max(newest["age_s"], 0.0), step_s, steps, lead_s)
    if length_s > MAX_WINDOW_NS / 1e9 - CLOCKS_S:
        raise CannotCapture(
            f"{steps} steps of {step_s:.1f} s may take longer than {MAX_WINDOW_NS / 60e9:.0f} minutes, the most: "
            "name fewer --steps"
        )
    return _window(job, run, ranks, now_ns, length_s, first, first + steps - 1)


def window_of_seconds(job: str, run: str, ranks: Sequence[int], seconds: float, now_ns: int) -> Control:
    """Return a window of so many seconds. Raises CannotCapture."""
    if seconds > MAX_WINDOW_NS / 1e9 - CLOCKS_S - LEAD_S:
        raise CannotCapture(f"a window has {MAX_WINDOW_NS / 1e9 - CLOCKS_S - LEAD_S:,.0f} s at most")
    return _window(job, run, ranks, now_ns, LEAD_S + seconds, -1, -1)


def _window(job: str, run: str, ranks: Sequence[int], now_ns: int, length_s: float, first: int, last: int) -> Control:
    return Control(
        key=f"window-{secrets.token_hex(4)}", kind=WINDOW, policy="always", job=exact(job), run=run,
        ranks=tuple(ranks), first_step=first, last_step=last, start_ns=now_ns - round(CLOCKS_S * 1e9),
        until_ns=now_ns + round(length_s * 1e9), requested_by=user_name(), requested_ns=now_ns,
    )  # fmt: skip


def states(query: Query, window: Control, job: str, run: str, sql: str = ROWS) -> list[RankState]:
    """Return the state of each rank that the window is about; ranks of which nothing is known are left out.

    `sql`: ROWS, or COUNTS for numbers of kernels alone.
    """
    scope = {"job": job, "run": run, "since": window.requested_ns, "first": window.first_step, "last": window.last_step}
    stored = {row["rank"]: row for row in query(sql, scope)}
    result = []
    for row in query(PROCESSES, scope):
        if not window.ranks or row["rank"] in window.ranks:
            answer, reason = _newest_answer(row["answers"], window.key)
            counts = stored.get(row["rank"], {})
            names = ("kernels", "copies", "launches", "steps", "stacks", "samples")
            numbers = {name: int(counts.get(name, 0)) for name in names}
            whole = bool(counts.get("is_whole"))
            result.append(RankState(row["rank"], row["host"], answer, reason, **numbers, is_whole=whole))
    return result


def _newest_answer(answers: Sequence[str], key: str) -> tuple[str, str]:
    """Return the answer that came last of those of a rank's processes to this key, and its reason."""
    to_key = []
    for text in answers:
        answer, _, rest = text.partition(" ")
        name, _, reason = rest.partition(": ")
        if name == key and answer in ANSWERS:
            to_key.append((ANSWERS.index(answer), reason))
    rank, reason = max(to_key, default=(0, ""))
    return ANSWERS[rank], reason


def are_over(states_now: Sequence[RankState], ranks: Sequence[int]) -> bool:
    """Return whether all ranks have answered for good."""
    return all(state.is_over for state in states_now) and {state.rank for state in states_now} >= set(ranks)


def is_complete(states_now: Sequence[RankState], ranks: Sequence[int], unchanged_s: float) -> bool:
    """Return whether all ranks have answered for good, and their rows are stored. `unchanged_s`: since the last change.

    Where the last step shows nothing, rows may come as long as a sink collects them.
    """
    if not are_over(states_now, ranks):
        return False
    if all(state.is_whole or state.answer == REJECTED for state in states_now):
        return bool(states_now)
    return unchanged_s >= COLLECTED_S


def short_of_steps(states_now: Sequence[RankState], window: Control) -> list[RankState]:
    """Return the ranks that have kernels, but not of all steps that were wanted."""
    wanted = window.last_step - window.first_step + 1 if window.last_step >= 0 else 0
    return [state for state in states_now if state.kernels and state.steps < wanted]


def as_row(state: RankState) -> Row:
    """Return the state as `drumline capture --json` prints it."""
    return {"rank": state.rank, "host": state.host, "answer": state.answer or "none", "reason": state.reason,
            "kernels": state.kernels, "copies": state.copies, "launches": state.launches, "steps": state.steps,
            "stacks": state.stacks, "samples": state.samples}  # fmt: skip
