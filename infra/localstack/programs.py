"""The local stack's child that runs drumline's own programs: stream worker, sink, agent and web page.

`python -m drumline.infra.localstack.programs STATE` waits until broker and engine answer, creates topics and tables,
and then becomes a supervisor of the programs (supervisor.py) with its state in STATE/programs. Logs are beside the
servers'.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import psutil

from drumline.infra.config.settings import Settings, settings
from drumline.infra.config.state_dir import State, read_json, write_json
from drumline.infra.localstack.clickhouse.engine import START_S, answers, wait_until
from drumline.infra.localstack.kafka.broker import broker_answers
from drumline.infra.localstack.supervisor import AT_ONCE, SUPERVISOR, Child, log_line
from drumline.infra.telemetry.health import PORTS

#: The programs, in the order of their start: `drumline NAME`.
PROGRAMS = ("stream", "sink", "agent", "serve")
COMMAND = (sys.executable, "-m", "drumline.cli.app")
#: This module.
CHILD = "drumline.infra.localstack.programs"
#: A program finishes the work in progress for up to 25 s after SIGTERM.
STOP_S = 30.0
#: Variable by which a program shows whose it is, also once its supervisor was killed.
STACK = "LOCAL_STACK_STATE"
#: Time for one answer of a program's port; s.
ANSWER_S = 1.0


def ports(config: Settings) -> dict[str, int]:
    """Return the port at which each program shows that it is there; 0 = none, or any.

    DRUMLINE_METRICS_PORT, which one program has for itself elsewhere, is the first of three here.
    """
    first = config.metrics_port
    metrics = {
        str(name): port if first is None else first and first + number
        for number, (name, port) in enumerate(PORTS.items())
    }
    return {**metrics, "serve": config.serve.port}


def ports_to_check(config: Settings) -> dict[str, tuple[str, int]]:
    """Return setting -> (program, port) of those that have one."""
    settings_of = {"stream": "DRUMLINE_METRICS_PORT", "sink": "DRUMLINE_METRICS_PORT + 1",
                   "agent": "DRUMLINE_METRICS_PORT + 2", "serve": "DRUMLINE_SERVE__PORT"}  # fmt: skip
    return {settings_of[name]: (name, port) for name, port in ports(config).items() if port}


def is_ready(config: Settings, name: str) -> bool:
    """Return whether a program does its work: its `/readyz` answers, or the page's port. Blocks for ANSWER_S.

    Without a port: whether it runs.
    """
    if not (port := ports(config)[name]):
        return bool((read_json(State.of(config).programs.children) or {}).get(name, {}).get("pid"))
    try:
        if name == "serve":  # it may have a certificate, and want a token
            socket.create_connection(("127.0.0.1", port), ANSWER_S).close()
            return True
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=ANSWER_S):
            return True
    except OSError:
        return False


def children(config: Settings, state: State) -> list[Child]:
    """Return the programs as children of a supervisor; they have its environment, and each a port of its own."""
    return [
        Child(
            name=name,
            argv=["env", f"DRUMLINE_METRICS_PORT={port}", *COMMAND, name],
            cwd=str(state.root),
            log=str(state.logs / f"{name}.log"),
            stop="term",
            stop_s=STOP_S,
        )
        for name, port in ports(config).items()
    ]


def prepare(config: Settings) -> bool:
    """Wait for the servers, create topics and tables, and return whether all are there. What is wrong is in the log."""
    if not wait_until(lambda: broker_answers(config) and answers(config), START_S):
        log_line("broker or engine do not answer")
        return False
    commands = (("topics", "apply"), ("migrate",))
    return all(subprocess.run([*COMMAND, *command], check=False).returncode == 0 for command in commands)


def end_orphans(state: State) -> None:
    """End programs of this stack whose supervisor was killed: a second worker, sink or agent must not run beside."""
    orphans = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(STACK) == str(state.root):
                process.terminate()
                orphans.append(process)
    for process in psutil.wait_procs(orphans, timeout=STOP_S)[1]:
        with suppress(psutil.Error):
            process.kill()


def main() -> int:
    """Run the programs of the state directory in argv; return the exit code."""
    state = State(Path(sys.argv[1]))
    end_orphans(state)
    os.environ[STACK] = str(state.root)  # all that it starts has it
    config = settings()
    if not prepare(config):
        return 1
    state.programs.root.mkdir(exist_ok=True)
    state.programs.children.unlink(missing_ok=True)
    fields = ("name", "argv", "cwd", "log", "stop", "stop_s")
    plan = [
        {name: value for name, value in asdict(child).items() if name in fields} for child in children(config, state)
    ]
    write_json(state.programs.plan, {"children": plan})
    os.execv(sys.executable, [sys.executable, "-m", SUPERVISOR, str(state.programs.root), AT_ONCE])


if __name__ == "__main__":
    sys.exit(main())
