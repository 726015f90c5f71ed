"""Run a program with an inference engine below `drumline run`, and wait for its rows in the spool."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.spool_tables import spool_rows


def run(
    command: Sequence[str], spool: Path, *options: str, seconds: float = 60.0, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DRUMLINE_SPOOL__ROOT": str(spool), **more}
    base = [sys.executable, "-m", "drumline.cli.app", "run", "--job", "own", "--policy", "light", *options, "--"]
    return subprocess.run([*base, *command], env=environment, capture_output=True, text=True, timeout=seconds)


def wait_for(spool: Path, topic: str, count: int) -> list[dict[str, Any]]:
    until = time.monotonic() + 30
    while len(rows := spool_rows(spool, topic)) < count and time.monotonic() < until:
        time.sleep(0.1)
    return rows
