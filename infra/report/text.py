"""A report in plain words: who held the job back, why, what it cost; and what cannot be said. Pure; plain text, escaped
by the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drumline.infra.report.data import ReportData, Row

#: An alarm in force, from least to worst.
LEVELS = ("suspect", "warning", "critical")
WHOLE_JOB = -1

#: cause -> what it means; (cause, detail) where the finer cause says more. docs/design/stragglers.md, section 5.
MEANING: Mapping[str | tuple[str, str], str] = {
    "host_stall": "its host gave the GPU nothing to do while the others waited",
    ("host_stall", "data_loading"): "it waited for its input data",
    ("host_stall", "host_sync"): "its host waited for the GPU before it launched more work",
    ("host_stall", "launch_late"): "its host launched kernels late",
    "slow_compute": "its kernels took longer than the other ranks'",
    ("slow_compute", "more_work"): "it had more to compute than the other ranks",
    ("slow_compute", "same_work"): "its GPU took longer for the same work",
    ("slow_compute", "other_work"): "its work differed a little from the other ranks'",
    ("slow_compute", "shared_gpu"): "other processes used its GPU",
    ("slow_compute", "throttled"): "its GPU ran at a lower clock",
    ("slow_compute", "slow_part"): "its GPU was slower at the same work and the same clock",
    "slow_copy": "its copies between host and GPU took longer",
    ("slow_copy", "pageable"): "it copied from or to pageable host memory; pinned memory is faster",
    "slow_link": "collectives took longer than before, although no rank came late",
    "changed_job": "steps became longer on all ranks together; the job may have changed by design",
    "unknown": "no single part of its time explains it",
}


#: steps.steps_from -> what told the steps apart.
STEPS_FROM = {
    "api": "the program's calls of drumline",
    "marker": "NVTX ranges of the program",
    "optimizer": "its optimizer",
    "inferred": "the order of its collectives",
}


def steps_from(found: list[str]) -> str:
    return ", ".join(STEPS_FROM.get(name, name) for name in sorted(found) if name)


def meaning(cause: str, detail: str) -> str:
    return MEANING.get((cause, detail)) or MEANING.get(cause, "")


def who(row: Row) -> str:
    if row["rank"] == WHOLE_JOB:
        return "The job as a whole"
    return f"Rank {row['rank']}" + (f" ({row['host']})" if row["host"] else "")


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole > 0 else "-"


def seconds(value: float) -> str:
    """GPU time for people: seconds below an hour, else hours."""
    return f"{value:,.1f} GPU-seconds" if value < 3600 else f"{value / 3600:,.1f} GPU-hours"


def money(data: ReportData, gpu_seconds: float) -> str:
    """At the report's price, or "" where none is set."""
    found = gpu_seconds / 3600 * data.price_per_gpu_hour
    return "" if not data.price_per_gpu_hour else f"{found:,.2f}" if found >= 1 or found == 0 else f"{found:.2g}"


def span(seconds: float) -> str:
    """Three digits that count, in the unit that fits: 16.8 s, 28.1 ms, 1,200 h."""
    units = (("h", 36000.0, 3600.0), ("s", 0.9995, 1.0), ("ms", 0.9995e-3, 1e-3))
    unit, size = next(((unit, size) for unit, least, size in units if seconds >= least), ("us", 1e-6))
    found = seconds / size
    return f"{found:,.0f} {unit}" if found >= 100 else f"{found:.3g} {unit}"


def amount(gigabytes: float) -> str:
    """Three digits that count, in the unit that fits: 13.2 GB, 28.4 kB."""
    units = (("TB", 1e3), ("GB", 1.0), ("MB", 1e-3), ("kB", 1e-6))
    unit, size = next((found for found in units if gigabytes >= 0.9995 * found[1]), ("B", 1e-9))
    found = gigabytes / size
    return f"{found:,.0f} {unit}" if found >= 100 else f"{found:.3g} {unit}"


def by_rank(data: ReportData) -> list[Row]:
    """What each blamed rank cost over all its causes, and the one that cost most; the dearest first."""
    found: dict[int, Row] = {}
    for row in data.cost:  # ordered by cost: the first row of a rank has its main cause
        into = found.setdefault(row["rank"], {**row, "lost_s": 0.0, "gpu_seconds": 0.0})
        into["lost_s"] += row["lost_s"]
        into["gpu_seconds"] += row["gpu_seconds"]
    return sorted(found.values(), key=lambda row: -row["gpu_seconds"])


def summary(data: ReportData, most: int = 5) -> list[str]:
    """Sentences, the most important first."""
    windows, judged = int(data.windows["windows"]), int(data.windows["judged"])
    if not windows:
        return [
            "Insufficient data: no straggler verdict is stored for this time. "
            + ("One rank has no peers to be compared with." if data.ranks == 1 else "Has a stream worker run?")
        ]
    if not judged:
        return [
            f"Insufficient data: in none of the {windows} windows of steps could enough ranks be compared, so nothing "
            "can be said about who held the job back."
        ]
    said, blamed = [], by_rank(data)
    for row in blamed[:most]:
        said.append(_blame(data, row))
    if len(blamed) > most:
        rest = sum(row["gpu_seconds"] for row in blamed[most:])
        said.append(f"{len(blamed) - most} more ranks cost {seconds(rest)}.")
    if not blamed:
        said.append(f"No rank held this job back in the {judged} windows of steps that could be judged.")
    if judged < windows:
        said.append(
            f"Insufficient data in {windows - judged} of {windows} windows of steps: too few ranks could be compared."
        )
    return said


def _blame(data: ReportData, row: Row) -> str:
    episodes = [e for e in data.episodes if e["rank"] == row["rank"]]
    worst = max(episodes, key=lambda e: e["gpu_seconds"], default=None)
    lost = share(row["lost_s"], float(data.windows["judged_s"]))
    verb = "lost" if row["rank"] == WHOLE_JOB else "cost this job"
    said = f"{who(row)} {verb} {lost} of its time: {seconds(row['gpu_seconds'])}"
    if price := money(data, row["gpu_seconds"]):
        said += f", {price} at {data.price_per_gpu_hour:g} per GPU-hour"
    if worst is not None:
        steps = f"steps {worst['first_step']} to {worst['last_step']}"
        said += f", {'mostly ' if len(episodes) > 1 else ''}in {steps}"
        text = meaning(worst["cause"], worst["detail"])
        said += f". Cause: {worst['cause'].replace('_', ' ')}" + (f"; {text}" if text else "")
        said += f" (confidence {worst['confidence']})"
    return said + "."


def evidence(text: str) -> list[str]:
    """What a verdict rests on, in words; [] where there is none. `text`: evidence_json."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        return []
    if not isinstance(found, dict):
        return []
    said = []
    excess = {k.removesuffix("_ns"): v for k, v in _numbers(found.get("excess_ns")).items()}
    if excess:
        parts = [f"{name} {value / 1e6:+,.1f} ms" for name, value in sorted(excess.items(), key=lambda i: -i[1])
                 if abs(value) >= 1e5]  # fmt: skip
        said.append("against the others: " + (", ".join(parts) or "nothing of 0.1 ms"))
    if ratios := _numbers(found.get("ratios")):
        said.append(", ".join(f"{value:.2f} times their {name}" for name, value in ratios.items()))
    if "ratio" in found:
        said.append(f"{found['ratio']} times its own past")
    at = found.get("collective")
    if isinstance(at, dict) and "longest_ns" in found:
        name = at.get("operation") or "collective"
        said.append(
            f"{name} {at.get('ordinal')} of step {at.get('step')} took {found.get('own_ns', 0) / 1e6:.1f} ms on it, "
            f"{found['longest_ns'] / 1e6:.1f} ms on the rank that waited longest"
        )
    if together := found.get("late_together"):
        said.append(f"late together: ranks {', '.join(map(str, together[:16]))}")
    if found.get("communicators") == "guessed":
        said.append("communicators are guessed")
    return said


def _numbers(found: Any) -> dict[str, float]:
    return {k: v for k, v in found.items() if isinstance(v, int | float)} if isinstance(found, dict) else {}
