"""Child processes of one command: started, restarted after a failure, stopped cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

#: Lines of a log that are kept of each process that ended.
LAST_LINES = 30


class ProcessFailed(RuntimeError):
    """A process ended more often than its restarts allow. The message names its log."""


class ManagedProcess:
    """Runs one `drumline ARGS...` process and restarts it after a failure, at most `restarts` times.

    The owner calls `start`, then `check` again and again, and `stop` at the end. Only `kill` and `stop` block.

    exits: the return code of each end that `check` found. ends: the last lines that the process had written by then.
    log: file that gets stdout and stderr.
    """

    def __init__(self, name: str, args: list[str], log: Path, env: Mapping[str, str], restarts: int = 5) -> None:
        self.name, self.args, self.log, self.restarts = name, args, log, restarts
        self.exits: list[int] = []
        self.ends: list[str] = []
        self._began = 0
        self._env = {**os.environ, **env}
        self._process: subprocess.Popen[bytes] | None = None

    def add_environment(self, more: Mapping[str, str]) -> None:
        """Add environment variables for the next start."""
        self._env |= more

    @property
    def pid(self) -> int | None:
        """The process id; None while it does not run."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the process in a session of its own."""
        with self.log.open("ab") as out:
            self._began = out.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "drumline.cli.app", *self.args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env,
                start_new_session=True,  # the owner passes Ctrl-C on, in order
            )

    def check(self) -> None:
        """Restart the process if it has exited.

        Raises:
            ProcessFailed: it exited too often; the message has the end of its log.
        """
        if self._process is None or self._process.poll() is None:
            return
        self.exits.append(self._process.returncode)
        self.ends.append(self._last_lines())
        if len(self.exits) > self.restarts:
            raise ProcessFailed(
                f"{self.name} ended {len(self.exits)} times (exit {self.exits[-1]}); {self.log}:\n{self.ends[-1]}"
            )
        self.start()

    def _last_lines(self) -> str:
        """Return the end of what the process has written since its start."""
        with self.log.open(errors="replace") as log:
            log.seek(self._began)
            return "\n".join(log.read().splitlines()[-LAST_LINES:])

    def kill(self) -> None:
        """Send SIGKILL and wait; `exits` does not count it. `start` starts the process again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def terminate(self) -> None:
        """Send SIGTERM and return; `check` starts the process again. From any thread."""
        if (process := self._process) is not None:
            process.send_signal(signal.SIGTERM)

    def stop(self, timeout_s: float = 20.0) -> None:
        """Send SIGTERM, and SIGKILL after `timeout_s`; wait for the end. Idempotent."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None


def check_all(programs: Iterable[ManagedProcess]) -> None:
    """Call `check()` of each process. Raises ProcessFailed."""
    for program in programs:
        program.check()
