"""A measured program in a process of its own, on a core of its own, while broker and engine run on the others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from drumline.bench.pin import off_that_core
from drumline.infra import stack as local_stack
from drumline.infra.private import environment
from drumline.infra.settings import Settings


def child(settings: Settings, module: str, which: str, wanted: int, profile: Path | None = None) -> dict[str, Any]:
    """Run `drumline.bench.<module>` until it has dealt with `wanted` records; what it measured, see sampled.py.

    Raises RuntimeError with its last words.
    """
    off_that_core(p.pid for processes in local_stack.own_processes(settings).values() for p in processes)
    command = [sys.executable, "-m", f"drumline.bench.{module}", which, str(wanted)]
    command += [str(profile.resolve())] if profile is not None else []
    done = subprocess.run(command, capture_output=True, text=True, env=environment(settings), check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{module} {which} ended with {done.returncode}:\n{done.stderr[-1500:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    if result["handled"] < wanted:
        raise RuntimeError(f"{module} {which} handled {result['handled']} of {wanted}:\n{done.stderr[-1500:]}")
    return result
