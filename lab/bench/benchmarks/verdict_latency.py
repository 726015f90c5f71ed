"""Measures how long after the end of a window its verdict is in ClickHouse, for a job at its own speed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from drumline.lab.bench.processes.running_pipeline import DRAIN_S, RunningPipeline
from drumline.lab.bench.result import BenchReport, percentiles

DELAY_S = 5


def first_delays(
    phases: Sequence[Mapping[str, Any]], seen: Sequence[Mapping[str, Any]], loops: int, steps: int
) -> list[float]:
    """Return, for each fault, seconds from the end of the first window inside it to the first row at warning or above.

    `seen`: rows with first_step, last_step, rank, severity, end_ns and seen_ns, the time at which a query first
    returned them. Faults without such a row are left out; the caller counts them.
    """
    delays = []
    for loop in range(loops):
        for phase in phases:
            low, high = (phase[name] + loop * steps for name in ("first_step", "last_step"))
            inside = [r for r in seen if low <= r["first_step"] and r["last_step"] <= high]
            named = [r for r in inside if r["rank"] in phase["fault_ranks"] and r["severity"] >= 2]
            if named:
                delays.append((min(r["seen_ns"] for r in named) - min(r["end_ns"] for r in inside)) / 1e9)
    return delays


def replay_paced(running: RunningPipeline, loops: int, report: BenchReport) -> None:
    """Replay `loops` repetitions at the recorded speed, poll ClickHouse meanwhile, and add the delays.

    Raises:
        RuntimeError: verdicts are missing after DRAIN_S.
    """
    manifest = json.loads((running.folder / "manifest.json").read_text())
    faults = [phase for phase in manifest["phases"] if phase.get("fault_ranks")]
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    lags: list[int] = []

    def poll(job: str) -> None:
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
        while replay.is_running():
            poll("paced")
            time.sleep(0.1)
    silent = time.monotonic() + running.settings.stream.idle_s + 1
    while time.monotonic() < silent or not running.all_stored():
        poll("paced")
        time.sleep(0.1)
        if time.monotonic() > silent + DRAIN_S:
            raise RuntimeError(f"verdicts are missing: not within {DRAIN_S:.0f} s")
    poll("paced")
    rows = list(seen.values())
    first: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda r: int(r["seen_ns"])):
        first.setdefault(row["first_step"], row)
    steps = len(manifest["steps_rank0"])
    delays = first_delays(faults, rows, loops, steps)
    report.add("faults named", len(delays), "", target=len(faults) * loops)  # the delays below are of these
    for name, value in percentiles(delays).items():
        target = {"target": DELAY_S, "at_most": True} if name == "p95" else {}
        report.add(f"fault's first window to straggler row, {name}", value, "s", **target)
    for name, value in percentiles([(r["seen_ns"] - r["end_ns"]) / 1e9 for r in first.values()]).items():
        report.add(f"any window's end to its first row, {name}", value, "s")
    for name, value in percentiles([r["seen_ns"] / 1e9 - r["published_ms"] / 1e3 for r in first.values()]).items():
        report.add(f"of that, verdict in Kafka to row, {name}", value, "s")
    report.add("worker's lag then, most", max(lags, default=0), "records")
    report.notes.append(
        f"Paced: {len(first)} windows of {running.settings.stream.window_steps} steps; ClickHouse asked every 0.1 s."
    )
