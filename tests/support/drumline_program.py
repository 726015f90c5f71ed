"""`drumline` as a process of its own, forked from one that has imported what most commands need.

To import it takes 1.4 to 2.3 s of CPU. So this is for tests whose subject is what a command does. What is about the
start of a program (modules, signals, terminals), or runs other code by its environment, starts it with `python -m`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from support.wait_limit import WAIT_S

#: None of them has threads that a fork would leave behind, as pyarrow does.
PRELOADED = (
    "pytest", "clickhouse_connect", "confluent_kafka", "rich.table", "typer", "drumline.cli.app",
    "drumline.cli.operate.audit", "drumline.cli.operate.sink", "drumline.sinks.audit.audit", "drumline.sinks.sink",
    "drumline.cli.query.sql",
)  # fmt: skip


def _main(arguments: tuple[str, ...], environment: Mapping[str, str], files: tuple[Path, Path, Path]) -> None:
    from drumline.cli.app import main

    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(files):
        os.dup2(os.open(path, os.O_WRONLY if number else os.O_RDONLY), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.argv = ["drumline", *arguments]
    main()


class DrumlineProgram:
    """A running command, with the names of `subprocess.Popen`; `stdout` and `stderr` have what it has written."""

    def __init__(self, arguments: tuple[str, ...], environment: Mapping[str, str], stdin: str = "") -> None:
        self.args = ("drumline", *arguments)
        files = [tempfile.NamedTemporaryFile() for _ in range(3)]  # noqa: SIM115
        files[0].write(stdin.encode())
        files[0].flush()
        _, self.stdout, self.stderr = self._files = files
        context: Any = get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        paths = tuple(Path(file.name) for file in files)
        self._process = context.Process(target=_main, args=(arguments, dict(environment), paths))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float = WAIT_S) -> int:
        self._process.join(timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float = WAIT_S) -> tuple[bytes, bytes]:
        self.wait(timeout)
        return self.stdout.read(), self.stderr.read()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def run(*arguments: str, environment: Mapping[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its exit code and what it printed."""
    program = DrumlineProgram(arguments, environment, stdin)
    try:
        code = program.wait()
    finally:
        program.kill()
    return subprocess.CompletedProcess(program.args, code, *(text.decode() for text in program.communicate()))
