"""Texts on what was not evaluated: windows of steps without verdicts, and ranks that never reported."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from drumline.infra.guidance.causes import INSUFFICIENT_DATA, guidance
from drumline.infra.runtime.terminal import escape_controls
from drumline.views.report.data import LISTED, Row

#: What to do about ranks that never reported.
ACT = (
    "Look on their hosts whether the job runs under drumline, whether the agent does, and what `drumline doctor` finds."
)


def no_verdict(windows: Row, rank: int | None, ranks: int, hangs: Sequence[Row] = ()) -> str:
    """Return the sentence for a run of `ranks` ranks, or a rank of it, that no verdict names.

    `hangs`: times for which the run stood still; one that lasts outranks what windows before it show.
    """
    for row in hangs:
        if row["lasts"] and (rank is None or rank in row["awaited"]):
            return f"the job waits for {'a rank' if rank is None else f'rank {rank}'}: {row['note']}"
    evaluated = int(windows["evaluated"])
    if not evaluated:
        if ranks == 1:
            return "insufficient data: the job has one rank, which has no peers, and too few steps of its own so far"
        entry = guidance(INSUFFICIENT_DATA, windows["reason"]) if windows["windows"] else None
        if entry is not None:
            return f"insufficient data: {entry.meaning}. {entry.act}"
        return "insufficient data: no window of steps was evaluated; is a stream worker up?"
    subject = "no rank" if rank is None else "the job as a whole does not" if rank < 0 else f"rank {rank} does not"
    verb = "holds" if rank is None else "hold"
    return f"{subject} {verb} this job back, in {evaluated} windows of steps{_remainder(windows)}"


def _remainder(windows: Row) -> str:
    """Return which windows have no verdict, and why most of them; "" where all have one."""
    count = int(windows["windows"]) - int(windows["evaluated"])
    if count <= 0:
        return ""
    entry = guidance(INSUFFICIENT_DATA, windows["reason"])
    reason = f": {entry.meaning}" if entry else ""
    return f"; {count} more, in steps {spans(windows['unevaluated'])}, could not be evaluated{reason}"


def spans(numbers: Sequence[tuple[int, int]]) -> str:
    """Return ranges of numbers, in order, as text: "0 to 39, 60, 80 to 99, ..."; neighbours become one."""
    joined: list[list[int]] = []
    for first, last in numbers:
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(last, joined[-1][1])
        else:
            joined.append([first, last])
    texts = [f"{first} to {last}" if first < last else f"{first}" for first, last in joined[:LISTED]]
    return ", ".join(texts) + ", ..." * (len(joined) > LISTED)


def attempts_text(run: Row, job: str) -> str:
    """Return the sentence on a run that restarted; "" for one attempt. `run`: with LABELS' columns."""
    attempts = run.get("attempts", [])
    if len(attempts) < 2:
        return ""
    number, started, *_ = attempts[-1]
    earlier = [f"attempt {of} (steps {first} to {last})" for of, _, first, last in reversed(attempts[:-1])]
    quoted = shlex.quote(escape_controls(job))
    more = f" and {len(earlier) - LISTED} more" if len(earlier) > LISTED else ""
    return (
        f"Attempt {number} of this run, since {started[:19]} UTC; before it: {', '.join(earlier[:LISTED])}{more}. "
        f"Costs are those of all. `drumline sql attempts --job {quoted}` has them by attempt."
    )


def unreported_text(run: Row) -> str:
    """Return the sentence that names ranks of which nothing ever came; "" without any. `run`: with LABELS' columns."""
    count = int(run.get("unreported_ranks", 0))
    if not count:
        return ""
    names = spans([(rank, rank) for rank in map(int, run["unreported"])])
    subject, verb = ("Rank", "has") if count == 1 else (f"{count:,} ranks,", "have")
    return f"{subject} {names} of {int(run['world']):,} {verb} never reported. {ACT}"
