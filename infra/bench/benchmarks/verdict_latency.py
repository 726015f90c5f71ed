"""A job at its own speed: how long after the end of a window is its verdict in ClickHouse?"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from drumline.infra.bench.processes.running_pipeline import DRAIN_S, Running
from drumline.infra.bench.result import Report, percentiles

DELAY_S = 5


def first_delays(
    phases: Sequence[Mapping[str, Any]], seen: Sequence[Mapping[str, Any]], loops: int, steps: int
) -> list[float]:
    """For each fault, seconds from the end of the first window wholly inside it to the first row at warning or above.

    `seen`: rows with first_step, last_step, rank, severity, end_ns and seen_ns (when a query first gave them). A
    fault without such a row is left out, and counted by who calls. Pure.
    """
    found = []
    for loop in range(loops):
        for phase in phases:
            low, high = (phase[name] + loop * steps for name in ("first_step", "last_step"))
            inside = [r for r in seen if low <= r["first_step"] and r["last_step"] <= high]
            blamed = [r for r in inside if r["rank"] in phase["fault_ranks"] and r["severity"] >= 2]
            if blamed:
                found.append((min(r["seen_ns"] for r in blamed) - min(r["end_ns"] for r in inside)) / 1e9)
    return found


def replay_paced(running: Running, loops: int, report: Report) -> None:
    manifest = json.loads((running.folder / "manifest.json").read_text())
    faults = [phase for phase in manifest["phases"] if phase.get("fault_ranks")]
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    lags: list[int] = []

    def look(job: str) -> None:
        rows = running.query(
            "SELECT first_step, last_step, rank, toInt8(severity) AS severity, "
            "toUnixTimestamp64Nano(window_end) AS end_ns, "
            f"toUnixTimestamp64Milli(published) AS published_ms FROM stragglers WHERE job = '{job}'"
        )
        now = time.time_ns()
        for row in rows:
            key = (row["first_step"], row["last_step"], row["rank"], row["severity"])
            seen.setdefault(key, {**row, "seen_ns": now})
        behind = running.lag()
        if behind is not None:
            lags.append(behind)

    with running.replay("--speed", "1", "--loop", str(loops), "--job", "paced") as replay:
        while replay.runs():
            look("paced")
            time.sleep(0.1)
    silent = time.monotonic() + running.settings.stream.idle_s + 1
    while time.monotonic() < silent or not running.all_stored():
        look("paced")
        time.sleep(0.1)
        if time.monotonic() > silent + DRAIN_S:
            raise RuntimeError(f"verdicts are missing: not within {DRAIN_S:.0f} s")
    look("paced")
    rows = list(seen.values())
    first: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda r: int(r["seen_ns"])):
        first.setdefault(row["first_step"], row)
    steps = len(manifest["steps_rank0"])
    delays = first_delays(faults, rows, loops, steps)
    report.add("faults named", len(delays), "", bar=len(faults) * loops)  # the delays below are of these
    for name, value in percentiles(delays).items():
        bar = {"bar": DELAY_S, "most": True} if name == "p95" else {}
        report.add(f"fault's first window to straggler row, {name}", value, "s", **bar)
    for name, value in percentiles([(r["seen_ns"] - r["end_ns"]) / 1e9 for r in first.values()]).items():
        report.add(f"any window's end to its first row, {name}", value, "s")
    for name, value in percentiles([r["seen_ns"] / 1e9 - r["published_ms"] / 1e3 for r in first.values()]).items():
        report.add(f"of that, verdict in Kafka to row, {name}", value, "s")
    report.add("worker's lag then, most", max(lags, default=0), "records")
    report.notes.append(
        f"Paced: {len(first)} windows of {running.settings.stream.window_steps} steps; ClickHouse asked every 0.1 s."
    )
