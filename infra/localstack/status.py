"""State of the local stack, for `drumline status`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import State, held, read_json
from drumline.infra.localstack.clickhouse.engine import answers
from drumline.infra.localstack.disk_space import short_disks
from drumline.infra.localstack.kafka.broker import broker_answers, broker_name, numbers
from drumline.infra.localstack.processes import PROGRAMS, own_processes
from drumline.infra.localstack.programs import is_ready
from drumline.infra.localstack.stack import addresses, has_programs, served


def status(settings: Settings) -> dict[str, Any]:
    """Return the state as JSON. `running`: a supervisor lives. `addresses`: those in use, else of the settings.

    `full`: sentences about disks without space.

    Of drumline's own programs, `answers` is whether they are ready.

    Per process: pid (None: foreign, or down), answers, restarts, orphan, rss_mib, uptime_s.
    """
    state = State.of(settings)
    running = held(state.lock)
    where = addresses(settings)
    if running:
        where = (read_json(state.plan) or {}).get("addresses", where)
    progress = (read_json(state.children) if running else None) or {}
    kafka = settings.kafka.model_copy(update={"bootstrap": where["kafka"]})
    clickhouse = settings.clickhouse.model_copy(update={"url": where["clickhouse_http"]})
    running_settings = settings.model_copy(update={"kafka": kafka, "clickhouse": clickhouse})
    processes = {name: measure(matches) for name, matches in own_processes(settings).items()}
    probes = {broker_name(n): broker_answers(settings, number=n) for n in numbers(settings)[1:]}
    probes |= {"broker": broker_answers(running_settings), "engine": answers(running_settings)}
    if running and has_programs(state):
        progress |= read_json(state.programs.children) or {}
        probes |= {name: is_ready(settings, name) for name in PROGRAMS}
    for name, answer in probes.items():
        processes.setdefault(name, measure([]))
        processes[name] |= {
            "answers": answer,
            "restarts": progress.get(name, {}).get("restarts", 0),
            "orphan": processes[name]["pid"] is not None and not running,
        }
    for name in {"programs", *PROGRAMS} & set(processes):
        processes[name].setdefault("orphan", not running)
    full = short_disks(settings)
    page = ((read_json(state.plan) if running else None) or {}).get("served", served(settings))["page"]
    return {
        "running": running,
        "addresses": where,
        "page": page,
        "processes": processes,
        "logs": str(state.logs),
        "full": full,
    }


def measure(processes: list[psutil.Process]) -> dict[str, Any]:
    """Return pid, memory (MiB) and age (s) of the first process that still runs."""
    for process in processes:
        try:
            rss, age = process.memory_info().rss, time.time() - process.create_time()
        except psutil.Error:
            continue
        return {"pid": process.pid, "rss_mib": round(rss / 2**20, 1), "uptime_s": round(age, 1)}
    return {"pid": None, "rss_mib": 0.0, "uptime_s": 0.0}


def password_files(settings: Settings) -> dict[str, Path]:
    """Return user -> file with the password, for existing files."""
    folder = State.of(settings).secrets
    return {path.stem: path for path in sorted(folder.glob("*.password"))} if folder.is_dir() else {}
