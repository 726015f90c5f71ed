"""Texts of the report: which rank held the job back, why, at which cost, and which data are missing.

Texts are plain; the page escapes them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

from drumline.infra.clickhouse.coverage import is_too_little
from drumline.infra.guidance.causes import INSUFFICIENT_DATA, guidance
from drumline.infra.guidance.entry import cause_text
from drumline.infra.guidance.hangs import hang_guidance
from drumline.infra.guidance.links import slow_link_text, slow_link_texts
from drumline.infra.guidance.stages import unequal_stages_text
from drumline.infra.runtime.terminal import escape_controls
from drumline.views.report.data import ReportData, Row
from drumline.views.report.gaps import attempts_text, spans, unreported_text

#: Labels that name who is responsible for a job.
OWNERS = ("team", "user")
#: An alarm in force, from least to worst.
LEVELS = ("suspect", "warning", "critical")
WHOLE_JOB = -1
#: Steps of a timeline that people look at; a window has more.
TIMELINE_STEPS = 10

#: steps.steps_from -> the source that separates steps.
STEPS_FROM = {
    "api": "the program's calls of drumline",
    "marker": "NVTX ranges of the program",
    "optimizer": "its optimizer",
    "inferred": "the order of its collectives",
}


def steps_from(names: list[str]) -> str:
    """Return the sources that separate steps, as text."""
    return ", ".join(STEPS_FROM.get(name, name) for name in sorted(names) if name)


def meaning(cause: str, detail: str) -> str:
    """Return the meaning of a cause; "" for an unknown one."""
    entry = guidance(cause, detail)
    return entry.meaning if entry else ""


def action(cause: str, detail: str, job: str, web_page: str = "") -> str:
    """Return how to check a cause and what to do about it; "" for an unknown one. `web_page`: of `drumline serve`."""
    entry = guidance(cause, detail)
    more = f" More: {web_page}{entry.page}" if entry and web_page else ""
    return filled(f"{entry.check} {entry.act} Escalate to {entry.escalate}.{more}", job) if entry else ""


def filled(guide: str, job: str, pid: int = 0) -> str:
    """Return a text of the guidance with the job, and the process where one is known, in its commands."""
    guide = guide.replace("--job JOB", f"--job {quoted(job)}")
    return re.sub(r"\bPID\b", str(pid), guide) if pid else guide


def occupancy(kernel: Row) -> str:
    """Return a kernel's theoretical occupancy and what limits it."""
    if kernel["occupancy"] is None:
        return "–"
    return f"{kernel['occupancy']:.0%}, {kernel['limited_by']}"


def occupancy_note(kernels: Collection[Row]) -> str:
    """Return the meaning of the occupancies, and what the GPUs achieved over all kernels."""
    note = "Occupancy: the share of an SM's warps that the launch lets it hold at the most, and what is used up first."
    if all(kernel["occupancy"] is None for kernel in kernels):
        note = "Occupancy: not known, as CUDA's description of the GPU is missing and its model is not listed."
    reached = next((kernel["achieved"] for kernel in kernels if kernel["achieved"] is not None), None)
    if reached is None:
        return f"{note} No achieved occupancy: GPM needs Hopper or later, and an agent."
    return f"{note} Achieved over all kernels and pauses, by GPM: {reached:.0f}%."


def labelled(labels: Mapping[str, str], only: Collection[str] = ()) -> str:
    """Return labels of `drumline run` as text, "team vision, user ada"; `only`: those of these names."""
    return ", ".join(f"{name} {value}" for name, value in sorted(labels.items()) if not only or name in only)


def quoted(text: str) -> str:
    """Return a name as a shell takes it."""
    return shlex.quote(escape_controls(text))


def timeline_command(job: str, run: str, first_step: int, last_step: int) -> str:
    """Return the command that writes the first of these steps as a trace."""
    last = min(last_step, first_step + TIMELINE_STEPS - 1)
    return f"drumline timeline --job {quoted(job)} --run {quoted(run)} --steps {first_step}-{last}"


def flamegraph_command(job: str, run: str) -> str:
    """Return the command that writes GPU time by stack as a flame graph."""
    return f"drumline flamegraph --job {quoted(job)} --run {quoted(run)}"


def subject(row: Row) -> str:
    """Return the rank, or the job as a whole."""
    if row["rank"] == WHOLE_JOB:
        return "The job as a whole"
    return f"Rank {row['rank']}" + (f" ({row['host']})" if row["host"] else "")


def share(part: float, whole: float) -> str:
    """Return a percentage; "-" of nothing."""
    return f"{part / whole:.1%}" if whole > 0 else "-"


def seconds(value: float) -> str:
    """Format GPU time: seconds below an hour, else hours."""
    return f"{value:,.1f} GPU-seconds" if value < 3600 else f"{value / 3600:,.1f} GPU-hours"


def money(data: ReportData, gpu_seconds: float) -> str:
    """Return the cost at the report's price; "" where none is set."""
    return cost(data.price_per_gpu_hour, gpu_seconds)


def cost(price_per_gpu_hour: float, gpu_seconds: float) -> str:
    """Return the cost of GPU time; "" where no price is set."""
    amount_of_money = gpu_seconds / 3600 * price_per_gpu_hour
    if not price_per_gpu_hour:
        return ""
    return f"{amount_of_money:,.2f}" if amount_of_money >= 1 or not amount_of_money else f"{amount_of_money:.2g}"


def span(seconds: float) -> str:
    """Format a time with three significant digits in a fitting unit: 16.8 s, 28.1 ms, 1,200 h."""
    units = (("h", 36000.0, 3600.0), ("s", 0.9995, 1.0), ("ms", 0.9995e-3, 1e-3))
    unit, size = next(((unit, size) for unit, least, size in units if seconds >= least), ("us", 1e-6))
    value = seconds / size
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def amount(gigabytes: float) -> str:
    """Format an amount with three significant digits in a fitting unit: 13.2 GB, 28.4 kB."""
    units = (("TB", 1e3), ("GB", 1.0), ("MB", 1e-3), ("kB", 1e-6))
    unit, size = next((known for known in units if gigabytes >= 0.9995 * known[1]), ("B", 1e-9))
    value = gigabytes / size
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def by_rank(data: ReportData) -> list[Row]:
    """Return the cost of each named rank over all causes, with its main cause; the most expensive first."""
    totals: dict[int, Row] = {}
    for row in data.cost:  # ordered by cost: the first row of a rank has its main cause
        total = totals.setdefault(row["rank"], {**row, "lost_s": 0.0, "gpu_seconds": 0.0})
        total["lost_s"] += row["lost_s"]
        total["gpu_seconds"] += row["gpu_seconds"]
    return sorted(totals.values(), key=lambda row: -row["gpu_seconds"])


def summary(data: ReportData, most: int = 5, web_page: str = "") -> list[str]:
    """Return sentences, the most important first. `web_page`: of `drumline serve`, which has the guides; "" = none."""
    unreported = [unreported_text(data.run)] if data.run.get("unreported_ranks") else []
    hangs = [hang(row) + _guide(row["reason"], web_page) for row in data.hangs]
    attempts = [attempts_text(data.run, data.job)] if len(data.run.get("attempts", [])) > 1 else []
    return [*hangs, *attempts, *unreported, *_late_ranks(data, most)]


def hang(row: Row) -> str:
    """Return the sentence of a time for which the job stood still."""
    begin = f"The job has stood still since {row['started'][:19]} UTC"
    if not row["lasts"]:
        begin = f"The job stood still for {span(row['seconds'])} at {row['started'][:19]} UTC"
    return f"{begin}: {row['note']}"


def _guide(reason: str, web_page: str) -> str:
    """Return where the guide of a reason is; "" for one that is not known."""
    if (entry := hang_guidance(reason)) is None:
        return ""
    place = web_page + entry.page if web_page else f"docs/reference/causes.md, hung, {reason}."
    return f" What to do: {place}"


def _late_ranks(data: ReportData, most: int) -> list[str]:
    windows, evaluated = int(data.windows["windows"]), int(data.windows["evaluated"])
    if not windows:
        if data.ranks > 1 and not data.run["steps"]:
            return [unevaluated({"windows": 0, "evaluated": 0, "reason": "no_steps"}, data.job)]
        return [
            "Insufficient data: no straggler verdict is stored for this time. "
            + ("One rank has no peers to be compared with." if data.ranks == 1 else "Has a stream worker run?")
        ]
    measured = int(data.windows["measured"]) if evaluated else windows
    sentence = unevaluated({**data.windows, "windows": measured}, data.job)
    if not evaluated:
        return [sentence]
    sentences, named = [], by_rank(data)
    if len(named) > 1:
        sentences.append(_total(data, named))
    for row in named[:most]:
        sentences.append(_sentence(data, row))
    if len(named) > most:
        rest = sum(row["gpu_seconds"] for row in named[most:])
        sentences.append(f"{len(named) - most} more ranks cost {seconds(rest)}.")
    if not named:
        sentences.append(f"No rank held this job back in the {evaluated} windows of steps that could be evaluated.")
    if is_too_little(measured, evaluated, data.windows["reason"]):
        sentences.insert(0, sentence)
    elif evaluated < windows:
        reason = meaning(INSUFFICIENT_DATA, data.windows["reason"])
        steps = spans(data.windows["unevaluated"])
        sentences.append(
            f"Insufficient data in {windows - evaluated} of {windows} windows of steps, steps {steps}: {reason}."
        )
    if stages := unequal_stages_text(data.windows["stages"]):
        sentences.insert(len(sentences) - (evaluated < windows), stages)
    return sentences


def unevaluated(counts: Row, job: str) -> str:
    """Return the sentence of a job that cannot be evaluated, or not always: why, and what to do.

    `counts`: `windows`, `evaluated` of them, and the `reason` of most others.
    """
    windows, evaluated = int(counts["windows"]), int(counts["evaluated"])
    where = f" in {windows - evaluated:,} of {windows:,} windows of steps" if evaluated else ""
    entry = guidance(INSUFFICIENT_DATA, counts["reason"])
    assert entry is not None
    return filled(f"drumline cannot judge this job{where}: {entry.meaning}. {entry.act}", job)


def _sentence(data: ReportData, row: Row) -> str:
    episodes = [e for e in data.episodes if e["rank"] == row["rank"]]
    worst = max(episodes, key=lambda e: e["gpu_seconds"], default=None)
    verb = "lost" if row["rank"] == WHOLE_JOB else "cost this job"
    lost = share(row["lost_s"], float(data.windows["evaluated_s"]))
    sentence = f"{subject(row)} {verb} {lost} of its time: {_priced(data, row['gpu_seconds'])}"
    if worst is not None:
        steps = f"steps {worst['first_step']} to {worst['last_step']}"
        if len(episodes) == 1:
            sentence += f", in {steps}"
        else:
            sentence += f", {len(episodes)} times{_period(episodes)}, the most expensive in {steps}"
        text = meaning(worst["cause"], worst["detail"])
        sentence += f". Cause: {cause_text(worst['cause'])}" + (f"; {text}" if text else "")
        link = slow_link_text(worst["evidence"])
        sentence += (f"; {link}" if link else "") + f" (confidence {worst['confidence']})"
    return sentence + "."


def _total(data: ReportData, named: list[Row]) -> str:
    """Return the sentence on the cost of all ranks: GPU time adds up, lost time of several ranks does not."""
    total = sum(row["gpu_seconds"] for row in named)
    return f"In all, this job lost {share(total, data.ranks * data.length_s)} of its GPU time: {_priced(data, total)}."


def _priced(data: ReportData, gpu_seconds: float) -> str:
    price = money(data, gpu_seconds)
    return seconds(gpu_seconds) + (f", {price} at {data.price_per_gpu_hour:g} per GPU-hour" if price else "")


def _period(episodes: list[Row]) -> str:
    """Return the distance of three or more episodes in steps, if it is the same within a tenth; else ""."""
    first = sorted(e["first_step"] for e in episodes)
    gaps = [after - before for before, after in pairwise(first)]
    if len(gaps) < 2 or max(gaps) - min(gaps) > max(gaps) / 10:
        return ""
    return f", every {round(sum(gaps) / len(gaps))} steps"


#: Times of a late rank's process in the evidence (streams/stragglers/analysis/host_cause.py) -> their meaning.
HOST_TIMES = {
    "throttled_ns": "throttled",
    "run_queue_ns": "without a CPU",
    "gil_ns": "waiting for the GIL",
    "disk_ns": "waiting for a disk",
}


def evidence(text: str, steps: int) -> list[str]:
    """Return the evidence of a verdict as texts; [] where there is none.

    `text`: evidence_json, whose times are sums. `steps`: compared in its window; texts have the times of one step.
    """
    steps = max(1, steps)
    try:
        values: Any = json.loads(text)
    except ValueError:
        return []
    if not isinstance(values, dict):
        return []
    texts = slow_link_texts(text)
    seen = values.get("inspection")
    if isinstance(seen, dict) and (shares := _numbers(seen)).keys() >= {"share", "peer_share", "peer"}:
        of_peer = f"rank {shares['peer']:.0f} {shares['peer_share']:.0%}"
        texts.append(
            f"its Python was in {seen['at']} for {shares['share']:.0%} of the time, that of {of_peer}"
            if seen.get("at")
            else f"its Python was where that of rank {shares['peer']:.0f} was"
        )
    excess = {k.removesuffix("_ns"): v for k, v in _numbers(values.get("excess_ns")).items()}
    if excess:
        of_step = {name: value / steps for name, value in sorted(excess.items(), key=lambda i: -i[1])}
        parts = [f"{name} {value / 1e6:+,.1f} ms" for name, value in of_step.items() if abs(value) >= 1e5]
        texts.append("against its peers: " + (f"{', '.join(parts)} a step" if parts else "nothing of 0.1 ms a step"))
    if host := _numbers(values.get("host")):
        times = [f"{host[name] / 1e6 / steps:,.1f} ms {text}" for name, text in HOST_TIMES.items() if name in host]
        if "major_faults" in host:
            times.append(f"{host['major_faults'] / steps:,.0f} major page faults")
        texts += ["its process had more than its peers', a step: " + ", ".join(times)] if times else []
    if ratios := _numbers(values.get("ratios")):
        texts.append(", ".join(f"{value:.2f} times their {name}" for name, value in ratios.items()))
    if "ratio" in values:
        texts.append(f"{values['ratio']} times its baseline")
    at = values.get("collective")
    if isinstance(at, dict) and "longest_ns" in values:
        name = at.get("operation") or "collective"
        texts.append(
            f"{name} {at.get('ordinal')} of step {at.get('step')} took {values.get('own_ns', 0) / 1e6:.1f} ms on it, "
            f"{values['longest_ns'] / 1e6:.1f} ms on the rank that waited longest"
        )
    if together := values.get("late_together"):
        more = values.get("late_together_count", len(together)) - 16
        ranks = ", ".join(map(str, together[:16]))
        texts.append(f"late together: ranks {ranks}{f' and {more} more' if more > 0 else ''}")
    if late := _numbers(values.get("turns")):
        texts.append("late by turns: " + ", ".join(f"rank {rank} {share(part, 1.0)}" for rank, part in late.items()))
    if values.get("communicators") == "guessed":
        texts.append("communicators are guessed")
    return texts


def _numbers(values: Any) -> dict[str, float]:
    return {k: v for k, v in values.items() if isinstance(v, int | float)} if isinstance(values, dict) else {}
