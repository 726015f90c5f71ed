"""Start and stop of the local stack. supervisor.py, a detached process that outlives the command, runs its programs.

The supervisor holds `lock` exactly while it lives, as the kernel releases it. Processes that lost their supervisor are
found by the state directory in their command line (processes.py), never by a stored pid.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State, held, locked, read_json, write_json
from drumline.infra.localstack.clickhouse.config import engine_ports, prepare_engine
from drumline.infra.localstack.clickhouse.engine import START_S, answers, is_local_engine, log_tail, wait_until
from drumline.infra.localstack.disk_space import require_space, short_disks, space_errors
from drumline.infra.localstack.kafka.broker import broker_answers, broker_name, broker_ports, numbers, prepare_brokers
from drumline.infra.localstack.ports import require_free
from drumline.infra.localstack.processes import (
    PROGRAMS,
    PROGRAMS_CHILD,
    STOP_S,
    own_processes,
    page_processes,
    stop_orphans,
    stop_processes,
)
from drumline.infra.localstack.programs import is_ready, ports_to_check
from drumline.infra.localstack.supervisor import SUPERVISOR, Child

BUSY = "another `drumline up` or `down` has been running for two minutes; see `drumline status`"
#: Restarts of a child before it answered once, after which `up` gives up.
MAX_RESTARTS = 3


def addresses(settings: Settings) -> dict[str, str]:
    """Return the addresses for clients."""
    return {
        "kafka": settings.bootstrap,
        "clickhouse_http": settings.clickhouse_url,
        "clickhouse_native": f"127.0.0.1:{settings.local.clickhouse_tcp_port}",
        "state": str(settings.local.state),
    }


def served(settings: Settings) -> dict[str, str]:
    """Return what drumline's own programs serve: the spool, and the address of the web page."""
    scheme = "https" if settings.serve.certificate else "http"
    return {"spool": str(settings.spool.root), "page": f"{scheme}://127.0.0.1:{settings.serve.port}"}


def write_plan(settings: Settings, *, programs: bool = False) -> None:
    """Prepare the servers that do not run elsewhere, and write the supervisor's plan. Raises StackError.

    `programs`: drumline's own run too, unless a server is elsewhere, where others may run them.
    """
    state = State.of(settings)
    ports: dict[str, tuple[str, int]] = {}
    children: list[Child] = []
    if not settings.kafka.bootstrap:
        ports |= broker_ports(settings)
    if not settings.clickhouse.url:
        ports |= engine_ports(settings)
    require_free(ports)
    if not settings.kafka.bootstrap:
        children += prepare_brokers(settings)
    elif not broker_answers(settings, timeout_s=3):
        raise StackError(f"no Kafka broker answers at {settings.kafka.bootstrap}")
    if not settings.clickhouse.url:
        children.append(prepare_engine(settings))
    elif not answers(settings):
        raise StackError(f"no ClickHouse answers at {settings.clickhouse.url}")
    if not children:
        raise StackError("settings name a Kafka and a ClickHouse elsewhere, and both answer: there is nothing to start")
    if programs and runs_both(settings):
        require_free(ports_to_check(settings))
        children.append(
            Child(
                name="programs",
                argv=[sys.executable, "-m", PROGRAMS_CHILD, str(state.root)],
                cwd=str(state.root),
                log=str(state.logs / "programs.log"),
                stop="term",
                stop_s=2 * STOP_S,
            )
        )
    plan = [child.planned() for child in children]
    write_json(state.plan, {"addresses": addresses(settings), "served": served(settings), "children": plan})
    state.children.unlink(missing_ok=True)


def runs_both(settings: Settings) -> bool:
    """Return whether Kafka and ClickHouse are both the stack's own."""
    return not (settings.kafka.bootstrap or settings.clickhouse.url)


def up(settings: Settings, *, wait: bool = True, foreground: bool = False, programs: bool = False) -> dict[str, Any]:
    """Start what is not running; return the addresses and `already_running`. With `wait`, block until all answer.

    `programs`: drumline's own too; a stack that runs without them is restarted, and `programs` of the answer has, by
    name, whether each is ready.

    Servers of settings.kafka.bootstrap and settings.clickhouse.url are used instead, and must answer. `foreground`
    replaces this process by the supervisor and does not return. `full`: sentences about disks without space.
    Raises StackError; a partial start is undone.
    """
    state = State.of(settings)
    with ExitStack() as stack:
        stack.enter_context(space_errors(settings))
        state.create()
        # Same order as in `ensure_engine`. A stack that runs needs no wait for the engine's users.
        if not held(state.lock):
            stack.enter_context(locked(state.engine_users, "`drumline sql` has been using the engine for two minutes"))
        stack.enter_context(locked(state.command_lock, BUSY))
        running = held(state.lock)
        if running and foreground:
            raise StackError(f"the stack of {state.root} runs already; `drumline down` stops it")
        if running:
            require_same(settings, programs=programs and has_programs(state))
            if programs and runs_both(settings) and not has_programs(state):
                stop(settings)
                running = False
        if not running:
            stop_orphans(settings)
            require_space(settings)
            write_plan(settings, programs=programs)
            command = [sys.executable, "-m", SUPERVISOR, str(state.root)]
            if foreground:
                os.execv(command[0], command)
            start_supervisor(state, command)
        ready = dict[str, bool]()
        if wait:
            before = restarts(state, "programs") if running else 0
            try:
                wait_for_stack(settings)
                if has_programs(state):
                    ready = wait_for_programs(settings, before)
            except BaseException:
                if not running:
                    stop(settings)
                raise
    answer = {**addresses(settings), "already_running": running, "full": short_disks(settings)}
    return answer | ({"programs": ready, **served(settings)} if ready else {})


def has_programs(state: State) -> bool:
    """Return whether the plan has drumline's own programs."""
    return any(child["name"] == "programs" for child in (read_json(state.plan) or {"children": []})["children"])


def restarts(state: State, name: str) -> int:
    """Return how often the supervisor has restarted a child."""
    return int((read_json(state.children) or {}).get(name, {}).get("restarts", 0))


def wait_for_programs(settings: Settings, before: int) -> dict[str, bool]:
    """Block until drumline's own programs are ready; return, by name, whether each is after START_S.

    `before`: restarts of their supervisor that are over.

    Raises StackError where topics or tables cannot be made; the message has the end of the log.
    """
    ready, state = set[str](), State.of(settings)

    def failed() -> bool:
        return restarts(state, "programs") > before

    def all_are() -> bool:
        ready.update(name for name in PROGRAMS if name not in ready and is_ready(settings, name))
        return len(ready) == len(PROGRAMS)

    wait_until(all_are, START_S, lambda: held(state.lock) and not failed())
    if failed():
        log = state.logs / "programs.log"
        raise StackError(
            f"topics and tables could not be made; {log} ends with:\n{log_tail(log)}\n"
            "of an older checkout? `drumline uninstall`, or another DRUMLINE_LOCAL__STATE, begins anew"
        )
    return {name: name in ready for name in PROGRAMS}


def require_same(settings: Settings, *, programs: bool = False) -> None:
    """Check that the running stack has the addresses of these settings, and its programs what they serve.

    Raises StackError.
    """
    plan = read_json(State.of(settings).plan) or {}
    running = {**plan.get("addresses", {}), **(plan.get("served", {}) if programs else {})}
    expected = {**addresses(settings), **served(settings)}
    if different := [
        f"{name} is {running[name]}, not {expected[name]}" for name in running if running[name] != expected.get(name)
    ]:
        raise StackError("the stack runs with other settings: " + "; ".join(different) + "; `drumline down` first")


def start_supervisor(state: State, command: list[str]) -> None:
    """Start the supervisor in a session of its own, so that it survives the terminal; return when it holds its lock.

    Raises:
        StackError: it did not start within 20 s; the message has the end of its log.
    """
    log = state.logs / "supervisor.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=state.root, start_new_session=True
        )
    if not wait_until(lambda: held(state.lock), 20, lambda: process.poll() is None):
        raise StackError(f"the supervisor did not start; {log} ends with:\n{log_tail(log)}")


def wait_for_stack(settings: Settings, timeout_s: float = START_S) -> None:
    """Block until all brokers and the engine answer. Raises StackError with the end of the log of one that does not."""
    state = State.of(settings)
    planned = [entry["name"] for entry in (read_json(state.plan) or {"children": []})["children"]]
    children = [name for name in planned if name != "programs"]
    probes: dict[str, Callable[[], bool]] = {
        broker_name(number): partial(broker_answers, settings, 0.5, number) for number in numbers(settings)
    }
    probes["engine"] = partial(is_local_engine, settings)

    before = {name: restarts(state, name) for name in children}

    def may_start(name: str) -> bool:
        return held(state.lock) and restarts(state, name) - before[name] < MAX_RESTARTS

    for name in children:
        if not wait_until(probes[name], timeout_s, lambda name=name: may_start(name)):  # type: ignore[misc]
            log = state.logs / f"{name}.log"
            raise StackError(f"the {name} does not answer; {log} ends with:\n{log_tail(log)}")


def down(settings: Settings) -> bool:
    """Stop all processes of this state directory; data stays. Return False when none ran."""
    state = State.of(settings)
    if not state.root.is_dir():
        return False
    with locked(state.command_lock, BUSY):
        return stop(settings)


def stop(settings: Settings) -> bool:
    """Do the work of `down`; the caller holds the command lock."""
    state = State.of(settings)
    is_running = held(state.lock)
    if is_running:
        stop_processes(own_processes(settings)["supervisor"], timeout_s=45 + 2 * STOP_S)
    pages = list(page_processes(settings).values())
    stop_processes(pages, timeout_s=10)
    orphans = stop_orphans(settings)
    state.supervisor.unlink(missing_ok=True)
    return is_running or orphans > 0 or bool(pages)
