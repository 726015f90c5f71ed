"""`drumline replay` as a child of a benchmark: what it said at its end, or the reason in its last words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drumline.infra.localstack.clickhouse.engine import log_tail

#: Exit code of a replay that was asked to stop.
INTERRUPTED = 130


class Replay:
    """Runs from its construction on. `log`: where its stderr goes."""

    def __init__(self, folder: Path, env: Mapping[str, str], log: Path, *options: str) -> None:
        self._log, self._fine = log, {0}
        command = [sys.executable, "-m", "drumline.infra.cli.app", "replay", str(folder), "--json", *options]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=dict(env), start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def runs(self) -> bool:
        """Raises RuntimeError if it failed."""
        code = self._process.poll()
        if code is not None and code not in self._fine:
            raise RuntimeError(f"drumline replay ended with {code}: {log_tail(self._log)}")
        return code is None

    def summary(self) -> dict[str, Any]:
        """What it published (`ReplaySummary`), once it has ended. Raises RuntimeError if it failed."""
        output, _ = self._process.communicate()
        self.runs()
        found: dict[str, Any] = json.loads(output)
        return found

    def stop(self, timeout_s: float = 120.0) -> None:
        """Let it finish what it has begun; nothing if it has ended. Raises subprocess.TimeoutExpired."""
        if self._process.poll() is None:
            self._fine.add(INTERRUPTED)
            self._process.terminate()
            self._process.wait(timeout_s)


@contextmanager
def replaying(folder: Path, env: Mapping[str, str], log: Path, *options: str) -> Iterator[Replay]:
    """A replay that does not outlive the block."""
    replay = Replay(folder, env, log, *options)
    try:
        yield replay
    finally:
        replay.stop(30)
