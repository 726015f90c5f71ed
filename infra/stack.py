"""The local stack as a whole: start it, stop it, say how it is. Programs: broker.py and engine.py; who runs them:
supervisor.py, a detached process that outlives this one.

Whatever was killed: `lock` is held exactly while a supervisor lives (the kernel sees to that), and processes that lost
theirs are found by the state directory in their command line, never by a remembered pid.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from drumline.infra.broker import marker, prepare_broker
from drumline.infra.engine import START_S, answers, engine_ports, is_ours, last_words, prepare_engine, wait_until
from drumline.infra.kafka import client_config
from drumline.infra.ports import require_free
from drumline.infra.settings import Settings
from drumline.infra.state import StackError, State, held, locked, read_json, write_json

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


def broker_answers(settings: Settings, timeout_s: float = 2.0) -> bool:
    """Whether the broker lists its topics to a client."""
    try:
        client = AdminClient({**client_config(settings, "drumline-probe"), "log_level": 0})
        return bool(client.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False


def own_processes(settings: Settings) -> dict[str, list[psutil.Process]]:
    """Processes of this user that belong to this state directory, found by their arguments: name -> processes."""
    state = State.of(settings)
    found: dict[str, list[psutil.Process]] = {"supervisor": [], "broker": [], "engine": []}
    for process in psutil.process_iter():
        try:
            if process.uids().real != os.getuid():
                continue
            arguments = process.cmdline()
        except psutil.Error:
            continue
        if marker(state) in arguments and "kafka.Kafka" in arguments:
            found["broker"].append(process)
        elif arguments[1:4] == ["-m", "drumline.infra.supervisor", str(state.root)]:
            found["supervisor"].append(process)
        elif arguments[1:4] == ["-m", "drumline.infra.engine_main", str(state.clickhouse)]:
            found["engine"].append(process)
    return found


def stop_processes(processes: list[psutil.Process], timeout_s: float) -> None:
    """SIGTERM, wait, SIGKILL. psutil checks a process's start time first, so that no reused pid is hit."""
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, left = psutil.wait_procs(processes, timeout=timeout_s)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=10)


def stop_orphans(settings: Settings) -> int:
    """End broker and engine whose supervisor is gone; returns how many there were. The command lock must be held.

    The engine sees the end of its stdin and is given the time to stop by itself.
    """
    found = own_processes(settings)
    psutil.wait_procs(found["engine"], timeout=5)
    orphans = [process for process in (*found["broker"], *found["engine"]) if process.is_running()]
    stop_processes(orphans, timeout_s=20)
    return len(orphans)


def write_plan(settings: Settings, *, with_broker: bool) -> None:
    """Prepare both programs and write down what the supervisor runs."""
    state = State.of(settings)
    children = [prepare_broker(settings)] if with_broker else []
    children.append(prepare_engine(settings))
    fields = ("name", "argv", "cwd", "log", "stop", "stop_s", "environment")
    plan = [{name: value for name, value in asdict(child).items() if name in fields} for child in children]
    write_json(state.plan, {"addresses": addresses(settings), "children": plan})
    state.children.unlink(missing_ok=True)


def require_ports(settings: Settings, *, with_broker: bool) -> None:
    ports = engine_ports(settings)
    if with_broker:
        ports |= {
            "DRUMLINE_LOCAL__KAFKA_PORT": ("Kafka", settings.local.kafka_port),
            "DRUMLINE_LOCAL__CONTROLLER_PORT": ("Kafka's controller", settings.local.controller_port),
        }
    require_free(ports)


def up(settings: Settings, *, wait: bool = True, foreground: bool = False) -> dict[str, Any]:
    """Start what is not running; returns the addresses and `already_running`.

    The broker is left out where settings.kafka.bootstrap names one, which must answer then. `foreground` replaces this
    process by the supervisor and does not return. Raises StackError; what was half started is stopped again.
    """
    state = State.of(settings)
    state.create()
    with_broker = not settings.kafka.bootstrap
    with locked(state.command_lock, BUSY):
        if running := held(state.lock):
            if foreground:
                raise StackError(f"the stack of {state.root} runs already; `drumline down` stops it")
            require_same(settings)
        else:
            if not with_broker and not broker_answers(settings, timeout_s=5):
                raise StackError(f"no Kafka broker answers at {settings.kafka.bootstrap}")
            with locked(state.engine_users, "`drumline sql` has been using the engine for two minutes"):
                stop_orphans(settings)
                require_ports(settings, with_broker=with_broker)
                write_plan(settings, with_broker=with_broker)
            command = [sys.executable, "-m", "drumline.infra.supervisor", str(state.root)]
            if foreground:
                sys.stdout.flush()
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
        raise StackError(f"the supervisor did not start; {log} ends with:\n{last_words(log)}")


def wait_for_stack(settings: Settings, timeout_s: float = START_S) -> None:
    """Until broker and engine answer. Raises StackError with the last words of the one that does not."""
    state = State.of(settings)
    children = [entry["name"] for entry in (read_json(state.plan) or {"children": []})["children"]]
    probes = {"broker": lambda: broker_answers(settings, 0.5), "engine": lambda: is_ours(settings)}

    def hopeful(name: str) -> bool:
        progress = (read_json(state.children) or {}).get(name, {})
        return held(state.lock) and progress.get("restarts", 0) < HOPELESS

    for name in children:
        if not wait_until(probes[name], timeout_s, lambda name=name: hopeful(name)):  # type: ignore[misc]
            log = state.logs / f"{name}.log"
            raise StackError(f"the {name} does not answer; {log} ends with:\n{last_words(log)}")


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


def status(settings: Settings) -> dict[str, Any]:
    """How the stack is, JSON-ready. `running`: a supervisor lives. Per process: pid, answers, restarts, MiB, uptime s."""
    state = State.of(settings)
    plan = read_json(state.plan) or {"addresses": addresses(settings), "children": []}
    progress = read_json(state.children) or {}
    running = held(state.lock)
    processes = {}
    for name, found in own_processes(settings).items():
        report: dict[str, Any] = {"pid": None, "rss_mib": 0.0, "uptime_s": 0.0}
        for process in found:
            try:
                rss, started = process.memory_info().rss, process.create_time()
            except psutil.Error:
                continue
            report = {"pid": process.pid, "rss_mib": round(rss / 2**20, 1), "uptime_s": round(time.time() - started, 1)}
        if name != "supervisor":
            report["restarts"] = progress.get(name, {}).get("restarts", 0) if running else 0
            report["answers"] = answers(settings) if name == "engine" else broker_answers(settings)
            report["orphan"] = bool(found) and not running
        processes[name] = report
    return {
        "running": running,
        "external_broker": bool(settings.kafka.bootstrap),
        "addresses": plan["addresses"],
        "processes": processes,
        "logs": str(state.logs),
    }


def password_files(settings: Settings) -> dict[str, Path]:
    """user -> file with the password, for those that exist."""
    folder = State.of(settings).secrets
    return {path.stem: path for path in sorted(folder.glob("*.password"))} if folder.is_dir() else {}
