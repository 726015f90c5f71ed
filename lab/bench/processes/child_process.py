"""Runs a measured program in a process and on a core of its own; broker and engine run on the other cores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from drumline.infra.config.settings import Settings
from drumline.infra.localstack.ephemeral import environment
from drumline.infra.localstack.processes import own_processes
from drumline.lab.bench.processes.cpu_pinning import keep_off_last_core
from drumline.lab.bench.processes.process_watch import over_time
from drumline.lab.bench.result import BenchReport


def child(
    settings: Settings,
    module: str,
    which: str,
    wanted: int,
    profile: Path | None = None,
    most_s: float | None = None,
) -> dict[str, Any]:
    """Run `drumline.lab.bench.processes.<module>` until it has handled `wanted` records.

    With `most_s` it may have handled fewer by then. Returns the values that it measured of itself (self_sampling.py).
    Raises RuntimeError with the end of its stderr.
    """
    keep_off_last_core(p.pid for processes in own_processes(settings).values() for p in processes)
    command = [sys.executable, "-m", f"drumline.lab.bench.processes.{module}", which, str(wanted)]
    command += [str(profile.resolve()) if profile is not None else ""]
    command += [str(most_s)] if most_s is not None else []
    done = subprocess.run(command, capture_output=True, text=True, env=environment(settings), check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{module} {which} ended with {done.returncode}:\n{done.stderr[-1500:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    if result["handled"] < (wanted if most_s is None else 1):
        raise RuntimeError(f"{module} {which} handled {result['handled']} of {wanted}:\n{done.stderr[-1500:]}")
    return result


def add_common(report: BenchReport, measured: dict[str, Any], baseline: dict[str, Any], program: str, how: str) -> None:
    """Add memory, lag and conditions, which such programs report alike.

    `program` names the measured program in the notes; `how` describes how the baseline ran.
    """
    most, baseline_most = (max(sampled["memory"]) / 2**20 for sampled in (measured, baseline))
    report.add("memory, most", most, "MiB", baseline_most, target=400, at_most=True)
    report.notes.append(f"Memory, mean of each tenth of the time, MiB: {over_time(measured['memory'], 2**20)}.")
    report.notes.append(f"Lag, mean of each tenth, messages: {over_time(measured['left'])}.")
    report.notes.append(
        f"The messages lay in Kafka already. The {program} had {measured['core']} to itself, except for other "
        f"programs of the machine; broker and engine were kept off it; {how}."
    )
