"""The local stack as a whole: start it, stop it. Programs: broker.py, engine_config.py; who runs them: supervisor.py, a
detached process that outlives this one.

Whatever was killed: `lock` is held exactly while a supervisor lives (the kernel sees to that), and processes that lost
theirs are found by the state directory in their command line (stack_processes.py), never by a remembered pid.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State, held, locked, read_json, write_json
from drumline.infra.localstack.clickhouse.config import engine_ports, prepare_engine
from drumline.infra.localstack.clickhouse.engine import START_S, answers, is_local_engine, log_tail, wait_until
from drumline.infra.localstack.kafka.broker import broker_answers, broker_ports, prepare_broker
from drumline.infra.localstack.ports import require_free
from drumline.infra.localstack.processes import own_processes, stop_orphans, stop_processes
from drumline.infra.localstack.supervisor import Child

BUSY = "another `drumline up` or `down` has been running for two minutes; see `drumline status`"
#: Restarts of a child before it answered once, after which `up` gives up.
HOPELESS = 3


def addresses(settings: Settings) -> dict[str, str]:
    """Where clients connect to."""
    return {
        "kafka": settings.bootstrap,
        "clickhouse_http": settings.clickhouse_url,
        "clickhouse_native": f"127.0.0.1:{settings.local.clickhouse_tcp_port}",
        "state": str(settings.local.state),
    }


def write_plan(settings: Settings) -> None:
    """Prepare what is not elsewhere and write down what the supervisor runs. Raises StackError, as `up`."""
    state = State.of(settings)
    ports: dict[str, tuple[str, int]] = {}
    children: list[Child] = []
    if not settings.kafka.bootstrap:
        ports |= broker_ports(settings)
    if not settings.clickhouse.url:
        ports |= engine_ports(settings)
    require_free(ports)
    if not settings.kafka.bootstrap:
        children.append(prepare_broker(settings))
    elif not broker_answers(settings, timeout_s=3):
        raise StackError(f"no Kafka broker answers at {settings.kafka.bootstrap}")
    if not settings.clickhouse.url:
        children.append(prepare_engine(settings))
    elif not answers(settings):
        raise StackError(f"no ClickHouse answers at {settings.clickhouse.url}")
    if not children:
        raise StackError("settings name a Kafka and a ClickHouse elsewhere, and both answer: there is nothing to start")
    fields = ("name", "argv", "cwd", "log", "stop", "stop_s", "environment")
    plan = [{name: value for name, value in asdict(child).items() if name in fields} for child in children]
    write_json(state.plan, {"addresses": addresses(settings), "children": plan})
    state.children.unlink(missing_ok=True)


def up(settings: Settings, *, wait: bool = True, foreground: bool = False) -> dict[str, Any]:
    """Start what is not running; returns the addresses and `already_running`.

    What settings.kafka.bootstrap and settings.clickhouse.url name is used instead of started, and must answer.
    `foreground` replaces this process by the supervisor and does not return. Raises StackError; what was half started
    is stopped again.
    """
    state = State.of(settings)
    state.create()
    with ExitStack() as stack:
        # Same order as in `ensure_engine`. Who only looks at a running stack need not wait for the engine's users.
        if not held(state.lock):
            stack.enter_context(locked(state.engine_users, "`drumline sql` has been using the engine for two minutes"))
        stack.enter_context(locked(state.command_lock, BUSY))
        if running := held(state.lock):
            if foreground:
                raise StackError(f"the stack of {state.root} runs already; `drumline down` stops it")
            require_same(settings)
        else:
            stop_orphans(settings)
            write_plan(settings)
            command = [sys.executable, "-m", "drumline.infra.localstack.supervisor", str(state.root)]
            if foreground:
                os.execv(command[0], command)
            start_supervisor(state, command)
        if wait:
            try:
                wait_for_stack(settings)
            except BaseException:
                if not running:
                    stop(settings)
                raise
    return {**addresses(settings), "already_running": running}


def require_same(settings: Settings) -> None:
    """Raises StackError when the running stack has other addresses than these settings ask for."""
    theirs = (read_json(State.of(settings).plan) or {}).get("addresses", {})
    ours = addresses(settings)
    if different := [
        f"{name} is {theirs[name]}, not {ours[name]}" for name in theirs if theirs[name] != ours.get(name)
    ]:
        raise StackError("the stack runs with other settings: " + "; ".join(different) + "; `drumline down` first")


def start_supervisor(state: State, command: list[str]) -> None:
    """A session of its own: it survives the terminal and this process. Returns when it holds its lock."""
    log = state.logs / "supervisor.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=state.root, start_new_session=True
        )
    if not wait_until(lambda: held(state.lock), 20, lambda: process.poll() is None):
        raise StackError(f"the supervisor did not start; {log} ends with:\n{log_tail(log)}")


def wait_for_stack(settings: Settings, timeout_s: float = START_S) -> None:
    """Until broker and engine answer. Raises StackError with the last words of the one that does not."""
    state = State.of(settings)
    children = [entry["name"] for entry in (read_json(state.plan) or {"children": []})["children"]]
    probes = {"broker": lambda: broker_answers(settings, 0.5), "engine": lambda: is_local_engine(settings)}

    def restarts(name: str) -> int:
        return int((read_json(state.children) or {}).get(name, {}).get("restarts", 0))

    before = {name: restarts(name) for name in children}

    def hopeful(name: str) -> bool:
        return held(state.lock) and restarts(name) - before[name] < HOPELESS

    for name in children:
        if not wait_until(probes[name], timeout_s, lambda name=name: hopeful(name)):  # type: ignore[misc]
            log = state.logs / f"{name}.log"
            raise StackError(f"the {name} does not answer; {log} ends with:\n{log_tail(log)}")


def down(settings: Settings) -> bool:
    """Stop everything of this state directory; data stays. False when nothing ran. Safe to repeat."""
    state = State.of(settings)
    if not state.root.is_dir():
        return False
    with locked(state.command_lock, BUSY):
        return stop(settings)


def stop(settings: Settings) -> bool:
    """`down` for who holds the command lock."""
    state = State.of(settings)
    found = held(state.lock)
    if found:
        stop_processes(own_processes(settings)["supervisor"], timeout_s=45)
    orphans = stop_orphans(settings)
    state.supervisor.unlink(missing_ok=True)
    return found or orphans > 0
