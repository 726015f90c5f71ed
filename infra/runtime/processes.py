"""Child programs of one command: started, restarted when they die, stopped cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


class ProcessFailed(RuntimeError):
    """A program that keeps dying. The message names its log."""


class ManagedProcess:
    """One `drumline ARGS...` process. `check()` restarts it when it has died, at most `restarts` times. `exits`: how it
    died each time."""

    def __init__(self, name: str, args: list[str], log: Path, env: Mapping[str, str], restarts: int = 5) -> None:
        self.name, self.args, self.log, self.restarts = name, args, log, restarts
        self.exits: list[int] = []
        self._env = {**os.environ, **env}
        self._process: subprocess.Popen[bytes] | None = None

    def add_environment(self, more: Mapping[str, str]) -> None:
        """For the next start."""
        self._env |= more

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "drumline.infra.cli.app", *self.args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env,
                start_new_session=True,  # Ctrl-C is ours to pass on, in order
            )

    def check(self) -> None:
        """Restart it if it is gone. Raises ProcessFailed with the end of its log when that was too often."""
        if self._process is None or self._process.poll() is None:
            return
        self.exits.append(self._process.returncode)
        if len(self.exits) > self.restarts:
            end = "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
            raise ProcessFailed(
                f"{self.name} ended {len(self.exits)} times (exit {self.exits[-1]}); {self.log}:\n{end}"
            )
        self.start()

    def kill(self) -> None:
        """SIGKILL, not counted as a death; `start` starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self, timeout_s: float = 20.0) -> None:
        """SIGTERM, then SIGKILL if it does not end in time. Idempotent."""
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
    """`check()` each. Raises ProcessFailed."""
    for program in programs:
        program.check()
