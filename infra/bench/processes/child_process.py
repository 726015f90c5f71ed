"""A measured program in a process of its own, on a core of its own, while broker and engine run on the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from drumline.infra.bench.processes.cpu_pinning import off_that_core
from drumline.infra.bench.processes.process_watch import over_time
from drumline.infra.bench.result import Report
from drumline.infra.config.settings import Settings
from drumline.infra.localstack.ephemeral import environment
from drumline.infra.localstack.processes import own_processes


def child(settings: Settings, module: str, which: str, wanted: int, profile: Path | None = None) -> dict[str, Any]:
    """Run `drumline.infra.bench.processes.<module>` until it has dealt with `wanted` records; what it measured.

    Raises RuntimeError with its last words.
    """
    off_that_core(p.pid for processes in own_processes(settings).values() for p in processes)
    command = [sys.executable, "-m", f"drumline.infra.bench.processes.{module}", which, str(wanted)]
    command += [str(profile.resolve())] if profile is not None else []
    done = subprocess.run(command, capture_output=True, text=True, env=environment(settings), check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{module} {which} ended with {done.returncode}:\n{done.stderr[-1500:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    if result["handled"] < wanted:
        raise RuntimeError(f"{module} {which} handled {result['handled']} of {wanted}:\n{done.stderr[-1500:]}")
    return result


def add_both(report: Report, ours: dict[str, Any], theirs: dict[str, Any], who: str, others: str) -> None:
    """What two such programs took, beside what they did. `who`: ours; `others`: how the baseline ran."""
    report.add("memory, most", max(ours["memory"]) / 2**20, "MiB", max(theirs["memory"]) / 2**20, bar=400, most=True)
    report.notes.append(f"Memory, mean of each tenth of the time, MiB: {over_time(ours['memory'], 2**20)}.")
    report.notes.append(f"Lag, mean of each tenth, messages: {over_time(ours['left'])}.")
    report.notes.append(
        f"The messages lay in Kafka already. The {who} had {ours['core']} to itself, except for other programs of the "
        f"machine; broker and engine were kept off it; {others}."
    )
