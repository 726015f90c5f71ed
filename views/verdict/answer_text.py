"""Texts of the verdict on a recorded job: who held it back, why, at which cost, and how sure that is.

Texts are plain; the page escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from drumline.infra.guidance.causes import guidance
from drumline.infra.guidance.entry import cause_text
from drumline.producers.foreign.recognise import Format
from drumline.views.report.text import WHOLE_JOB, cost, meaning, seconds, span
from drumline.views.verdict.evaluation import NEEDED_STEPS, SURE_STEPS, LateRank, OfflineVerdict
from drumline.views.verdict.rank_budgets import RankBudget

#: Ranks of the table of budgets; of a larger job those with the least and with the most exposed communication.
MOST_ROWS = 32
#: Communication of other libraries is mentioned from this share of the time on, with so many of its kernels.
LEAST_SHARE, MOST_KERNELS = 0.001, 3


def answer_sentence(verdict: OfflineVerdict) -> str:
    """Return the answer in one or two sentences."""
    ranks, unit = [named for named in verdict.named if named.rank != WHOLE_JOB], verdict.job.unit
    if ranks:
        named = ranks[0]
        verb = "holds" if named.is_sure else "may hold"
        more = [n for n in ranks[1:] if n.is_sure]
        subject = _capital(verdict.job.described(named.rank))
        sentence = f"{subject} {verb} this job back: {_reason(named)}. {_costs(named, unit)}"
        also = ", ".join(f"{verdict.job.described(n.rank)} ({n.share:.1%}, {cause_text(n.cause)})" for n in more)
        return sentence + (f" Late too: {also}." if also else "")
    if verdict.named:
        job = verdict.named[0]
        return f"No rank is named, but the job as a whole loses time: {_reason(job)}. {_costs(job, unit)}"
    if verdict.answer == "none":
        return (
            f"No rank holds this job back: {_windows(verdict.evaluated)} of {verdict.window_steps} {unit}s could be "
            "evaluated, and none names a rank."
        )
    if not verdict.windows or verdict.evaluated:
        if not verdict.steps:
            return (
                "Insufficient data for a verdict: no step was recognised. It needs marks of steps (`ProfilerStep#N`, "
                "NVTX ranges `step N`), or collectives that repeat."
            )
        have = f"1 {unit} is recorded" if verdict.steps == 1 else f"{verdict.steps} {unit}s are recorded"
        hint = f" {text}" if (text := _last_arrival(verdict)) else ""
        return f"Insufficient data for a verdict: {have}, and a name needs {NEEDED_STEPS} or more.{hint}"
    below = " The time of each rank is below." if verdict.budgets else ""
    return f"Insufficient data for a verdict: {verdict.reason}.{below}"


def evidence_lines(verdict: OfflineVerdict, price_per_gpu_hour: float = 0.0) -> list[tuple[str, str]]:
    """Return (heading, text) of each rank and the job that is named: where, evidence, what to do."""
    lines = []
    for named in verdict.named:
        entry = guidance(named.cause, named.detail)
        subject = "the job as a whole" if named.rank == WHOLE_JOB else verdict.job.described(named.rank)
        first, last = (verdict.job.recorded_step(step) for step in (named.first_step, named.last_step))
        where = (
            f"{named.level}, {verdict.job.unit}s {first} to {last}, {_windows(named.windows)} of {verdict.evaluated}"
        )
        priced = cost(price_per_gpu_hour, named.gpu_seconds)
        lines.append((subject, where))
        lines.append(("cause", f"{cause_text(named.cause, named.detail)} (confidence {named.confidence})"))
        waited = f"{seconds(named.gpu_seconds)} of the ranks that waited"
        lines.append(("cost", f"{_share(named, verdict.job.unit)}; {waited}" + (f", {priced}" if priced else "")))
        lines += [("evidence", text) for text in named.evidence]
        lines += [("do", entry.act)] if entry else []
    return lines


def headers(verdict: OfflineVerdict) -> tuple[str, ...]:
    """Return the headers of the table of budgets."""
    return ("rank", verdict.job.unit, "compute", "copies", "exposed communication", "idle", "host", "came last")


def budget_rows(verdict: OfflineVerdict) -> list[tuple[str, ...]]:
    """Return the cells of the table of budgets, without its headers; times are means of a step."""
    return [_cells(verdict, budget) for budget in shown_budgets(verdict)]


def shown_budgets(verdict: OfflineVerdict) -> Sequence[RankBudget]:
    """Return the budgets that are shown: all, or of a large job those at both ends of exposed communication."""
    budgets = list(verdict.budgets)
    if len(budgets) <= MOST_ROWS:
        return budgets
    by_wait = sorted(budgets, key=lambda budget: budget.exposed_ms)
    ends = {budget.rank for budget in (*by_wait[: MOST_ROWS // 2], *by_wait[-MOST_ROWS // 2 :])}
    return [budget for budget in budgets if budget.rank in ends]


def budget_note(verdict: OfflineVerdict) -> str:
    """Return what the table shows, and what it does not."""
    shown, total = len(shown_budgets(verdict)), len(verdict.budgets)
    note = (
        f"Means of a {verdict.job.unit}. A rank with little exposed communication is the one that the others wait for."
    )
    return note + (f" {shown} of {total} ranks: with the least and the most of it." if shown < total else "")


def coverage_lines(verdict: OfflineVerdict) -> list[str]:
    """Return what was evaluated, why not the rest, and what was assumed."""
    job = verdict.job
    count, steps = len(job.ranks), f"{verdict.steps} {job.unit}{'s' if verdict.steps != 1 else ''}"
    ranks = f"{count} rank{'s' if count != 1 else ''}"
    if job.world_size > count and verdict.steps:
        ranks = f"{count} of {job.world_size} ranks"
    lines = [f"{ranks} and {steps} were read ({str(job.form).replace('_', ' ')})."]
    if verdict.windows:
        lines.append(
            f"{verdict.evaluated} of {_windows(len(verdict.windows))} of {verdict.window_steps} {job.unit}s were "
            "evaluated." + (f" The rest: {verdict.reason}." if verdict.reason else "")
        )
    if job.unit != "step":
        lines.append(
            "Steps are not marked, and all collectives are alike: each is compared by itself, and how many make a step "
            "is not known."
        )
    if job.form is Format.INSPECTOR and verdict.steps:
        lines.append("The log has no times of the host's work: more work and a late host look alike.")
    lines += [text] if (text := _not_understood(verdict)) else []
    return lines + [_sentence(note) for note in job.notes]


def _not_understood(verdict: OfflineVerdict) -> str:
    """Return a sentence on the share of communication that is not NCCL's; "" without any."""
    other_of = verdict.job.other_communication
    shares = [other.share for other in other_of.values()]
    if not shares or max(shares) < LEAST_SHARE:
        return ""
    least, most = f"{min(shares):.1%}", f"{max(shares):.1%}"
    share = most if least == most else f"{least} to {most}"
    kernels = list(dict.fromkeys(name for other in other_of.values() for name in other.kernels))
    more = f" and {len(kernels) - MOST_KERNELS} more kernels" if len(kernels) > MOST_KERNELS else ""
    ranks = f"{len(other_of)} rank{'s' if len(other_of) != 1 else ''}"
    return (
        f"Not understood: {share} of the time of steps, on {ranks}, is communication that is not NCCL's "
        f"({', '.join(kernels[:MOST_KERNELS])}{more}). Waits in it count as compute, and who is late to it is not "
        "found."
    )


def surer_lines(verdict: OfflineVerdict) -> list[str]:
    """Return what would make the answer surer; [] where nothing would."""
    lines = []
    if 0 < verdict.steps < SURE_STEPS:
        lines.append(
            f"Record {SURE_STEPS} {verdict.job.unit}s or more in a row on every rank: {NEEDED_STEPS} are the least, "
            "and small faults or uneven ones need more."
        )
    if verdict.steps and verdict.job.world_size > len(verdict.job.ranks):
        lines.append("Give a file of every rank: a rank without one cannot be named, and others may wait for it.")
    if len(verdict.job.ranks) == 1:
        lines.append("One rank has no peers to be compared with.")
    return lines


def _cells(verdict: OfflineVerdict, budget: RankBudget) -> tuple[str, ...]:
    def part(value: float) -> str:
        share = f" {value / budget.step_ms:.0%}" if budget.step_ms else ""
        return f"{span(value / 1e3)}{share}"

    reasons = ", ".join(f"{text} {span(value / 1e3)}" for text, value in budget.idle_reasons.items())
    idle = part(budget.idle_ms) + (f" ({reasons})" if reasons else "")
    host = ", ".join(f"{text} {span(value / 1e3)}" for text, value in budget.host_times.items()) or "-"
    last = f"{budget.last_at} of {budget.compared}" if budget.compared else "-"
    parts = (part(value) for value in (budget.compute_ms, budget.copy_ms, budget.exposed_ms))
    return (
        verdict.job.described(budget.rank).removeprefix("rank "),
        span(budget.step_ms / 1e3),
        *parts,
        idle,
        host,
        last,
    )


def _last_arrival(verdict: OfflineVerdict) -> str:
    """Return a sentence on the rank that came last to most collectives; "" where none came last to half of them."""
    worst = max(verdict.budgets, key=lambda budget: budget.last_at, default=None)
    if worst is None or 2 * worst.last_at <= worst.compared or len(verdict.job.ranks) < verdict.job.world_size:
        return ""
    name = _capital(verdict.job.described(worst.rank))
    return (
        f"{name} came last to {worst.last_at} of {worst.compared} collectives, which so few steps can show by chance."
    )


def _reason(named: LateRank) -> str:
    return meaning(named.cause, named.detail) or cause_text(named.cause, named.detail)


def _costs(named: LateRank, unit: str) -> str:
    return f"It costs {_share(named, unit)}."


def _share(named: LateRank, unit: str) -> str:
    return f"{named.share:.1%} of the time, {span(named.s_per_step)} a {unit}"


def _windows(count: int) -> str:
    return f"{count} window{'s' if count != 1 else ''}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _sentence(text: str) -> str:
    return _capital(text).rstrip(".") + "."
