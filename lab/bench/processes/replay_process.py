"""Runs `drumline replay` as a child process of a benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drumline.infra.localstack.clickhouse.engine import log_tail

#: Exit code of a replay that was stopped.
STOPPED = 130


class ReplayProcess:
    """Starts a replay when it is made. Its stderr goes to `log`, its summary to stdout. `stop` or `summary` ends it."""

    def __init__(self, folder: Path, env: Mapping[str, str], log: Path, *options: str) -> None:
        self._log, self._fine = log, {0}
        command = [sys.executable, "-m", "drumline.cli.app", "replay", str(folder), "--json", *options]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=dict(env), start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def is_running(self) -> bool:
        """Return whether the process runs. Raises RuntimeError if it failed."""
        code = self._process.poll()
        if code is not None and code not in self._fine:
            raise RuntimeError(f"drumline replay ended with {code}: {log_tail(self._log)}")
        return code is None

    def summary(self) -> dict[str, Any]:
        """Wait for the end and return the published counts (`ReplaySummary`). Raises RuntimeError if it failed."""
        output, _ = self._process.communicate()
        self.is_running()
        summary: dict[str, Any] = json.loads(output)
        return summary

    def stop(self, timeout_s: float = 120.0) -> None:
        """Let it complete the open batches and end; no effect if it has ended. Raises subprocess.TimeoutExpired."""
        if self._process.poll() is None:
            self._fine.add(STOPPED)
            self._process.terminate()
            self._process.wait(timeout_s)


@contextmanager
def replaying(folder: Path, env: Mapping[str, str], log: Path, *options: str) -> Iterator[ReplayProcess]:
    """Yield a replay that is stopped at the end of the block."""
    replay = ReplayProcess(folder, env, log, *options)
    try:
        yield replay
    finally:
        replay.stop(30)
