"""Processes of a local stack: search by their arguments, and termination."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress

import psutil

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State
from drumline.infra.localstack.kafka.broker import broker_folder, broker_name, marker, numbers
from drumline.infra.localstack.supervisor import SUPERVISOR

#: Module of the web page, which a kept demo starts with the state directory and its port as arguments.
PAGE = "drumline.views.serve.web_server"
#: drumline's own programs, in the order of their start: `drumline NAME`; and the module of the child that runs them.
PROGRAMS = ("stream", "sink", "agent", "exporter", "serve")
PROGRAMS_CHILD = "drumline.infra.localstack.programs"
COMMAND = (sys.executable, "-m", "drumline.cli.app")
#: Variable by which a program shows whose it is, also once its supervisor was killed.
STACK = "LOCAL_STACK_STATE"
#: A program finishes the work in progress for up to 25 s after SIGTERM.
STOP_S = 30.0


def own_processes(settings: Settings) -> dict[str, list[psutil.Process]]:
    """Return the user's processes of this state directory by their arguments: name -> processes.

    "broker" has those that are none of the further brokers of these settings. "programs" supervises PROGRAMS, which are
    in the result if they run.
    """
    state = State.of(settings)
    further = {str(broker_folder(state, n) / "server.properties"): broker_name(n) for n in numbers(settings)[1:]}
    names = ("supervisor", "broker", *further.values(), "engine")
    programs = (["-m", PROGRAMS_CHILD, str(state.root)], ["-m", SUPERVISOR, str(state.programs.root)])
    result: dict[str, list[psutil.Process]] = {name: [] for name in names}
    for process, arguments in _processes():
        if marker(state) in arguments and "kafka.Kafka" in arguments:
            result[further.get(arguments[-1], "broker")].append(process)
        elif arguments[1:4] == ["-m", SUPERVISOR, str(state.root)]:
            result["supervisor"].append(process)
        elif arguments[1:4] in programs:
            result.setdefault("programs", []).append(process)
        elif (name := _program(process, arguments, state)) is not None:
            result.setdefault(name, []).append(process)
        elif arguments[1:4] == ["-m", "drumline.infra.localstack.clickhouse.process", str(state.clickhouse)]:
            result["engine"].append(process)
    return result


def _program(process: psutil.Process, arguments: list[str], state: State) -> str | None:
    """Return the name of a program that the stack of this state directory runs; None for any other process."""
    if arguments[1:3] != [*COMMAND[1:]] or arguments[3:] not in ([name] for name in PROGRAMS):
        return None
    with suppress(psutil.Error, OSError):
        return arguments[3] if process.environ().get(STACK) == str(state.root) else None
    return None


def page_processes(settings: Settings) -> dict[int, psutil.Process]:
    """Return the web pages of this state directory that a kept demo started: port -> process."""
    start = ["-m", PAGE, str(State.of(settings).root)]
    return {
        int(arguments[4]): process for process, arguments in _processes() if arguments[1:4] == start and arguments[4:]
    }


def _processes() -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield the user's processes with their arguments."""
    for process in psutil.process_iter():
        try:
            if process.uids().real == os.getuid():
                yield process, process.cmdline()
        except psutil.Error:
            continue


def stop_processes(processes: list[psutil.Process], timeout_s: float) -> None:
    """Send SIGTERM, wait, send SIGKILL. psutil compares start times, so that no reused pid is signalled."""
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
    """Stop servers and programs without a supervisor; return their number. The caller holds the command lock.

    The engine reads the end of its stdin, so it has time to stop by itself.
    """
    result = own_processes(settings)
    psutil.wait_procs(result["engine"], timeout=5)
    orphans = [p for name, matches in result.items() if name != "supervisor" for p in matches if p.is_running()]
    stop_processes(orphans, timeout_s=STOP_S)
    return len(orphans)
