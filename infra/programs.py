"""Child programs of one command: started, restarted when they die, stopped cleanly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path


class ProgramFailed(RuntimeError):
    """A program that keeps dying. The message names its log."""


class Program:
    """One `drumline ARGS...` process. `check()` restarts it when it has died, at most `restarts` times."""

    def __init__(self, name: str, args: list[str], log: Path, env: Mapping[str, str], restarts: int = 5) -> None:
        self.name, self.args, self.log, self.restarts = name, args, log, restarts
        self.died = 0
        self._env = {**os.environ, **env}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "drumline.infra.cli", *self.args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self._env,
                start_new_session=True,  # Ctrl-C is ours to pass on, in order
            )

    def check(self) -> None:
        """Restart it if it is gone. Raises ProgramFailed with the end of its log when that was too often."""
        if self._process is None or self._process.poll() is None:
            return
        self.died += 1
        if self.died > self.restarts:
            end = "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])
            raise ProgramFailed(
                f"{self.name} ended {self.died} times (exit {self._process.returncode}); {self.log}:\n{end}"
            )
        self.start()

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


def wait_for(condition: object, programs: list[Program], timeout_s: float, every_s: float = 0.5) -> bool:
    """Poll `condition()` until it is true, keeping the programs alive; False when the time is over."""
    assert callable(condition)
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        for program in programs:
            program.check()
        if condition():
            return True
        time.sleep(every_s)
    return bool(condition())
