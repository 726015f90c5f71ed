"""Processes of a local stack: found by their arguments, and ended."""

from __future__ import annotations

import os

import psutil

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State
from drumline.infra.localstack.kafka.broker import marker


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
        elif arguments[1:4] == ["-m", "drumline.infra.localstack.supervisor", str(state.root)]:
            found["supervisor"].append(process)
        elif arguments[1:4] == ["-m", "drumline.infra.localstack.clickhouse.process", str(state.clickhouse)]:
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
