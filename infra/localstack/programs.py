"""The local stack's child that runs drumline's own programs: stream worker, sink, agent, exporter, page.

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
from pathlib import Path

from drumline.infra.config.settings import Settings, settings
from drumline.infra.config.state_dir import State, read_json, write_json
from drumline.infra.localstack.clickhouse.engine import START_S, answers, wait_until
from drumline.infra.localstack.kafka.broker import broker_answers
from drumline.infra.localstack.processes import COMMAND, PROGRAMS, STACK, STOP_S, own_processes, stop_processes
from drumline.infra.localstack.supervisor import AT_ONCE, SUPERVISOR, Child, log_line
from drumline.infra.telemetry.health import PORTS

#: Time for one answer of a program's port; s.
ANSWER_S = 1.0


def ports(config: Settings) -> dict[str, int]:
    """Return the port at which each program shows that it is there; 0 = none, or any.

    DRUMLINE_METRICS_PORT, which one program has for itself elsewhere, is the first of four here.
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
                   "agent": "DRUMLINE_METRICS_PORT + 2", "exporter": "DRUMLINE_METRICS_PORT + 3",
                   "serve": "DRUMLINE_SERVE__PORT"}  # fmt: skip
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


def main() -> int:
    """Run the programs of the state directory in argv; return the exit code."""
    state, config = State(Path(sys.argv[1])), settings()
    # Programs whose supervisor was killed: a second worker, sink or agent must not run beside.
    orphans = own_processes(config)
    stop_processes([process for name in PROGRAMS for process in orphans.get(name, ())], timeout_s=STOP_S)
    os.environ[STACK] = str(state.root)  # all that it starts has it
    if not prepare(config):
        return 1
    state.programs.root.mkdir(exist_ok=True)
    state.programs.children.unlink(missing_ok=True)
    write_json(state.programs.plan, {"children": [child.planned() for child in children(config, state)]})
    os.execv(sys.executable, [sys.executable, "-m", SUPERVISOR, str(state.programs.root), AT_ONCE])


if __name__ == "__main__":
    sys.exit(main())
