"""Runs all parts of a chaos run on a private stack: worker, sink, agent, load; kills and restarts them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from drumline.infra.chaos import interrupted_work
from drumline.infra.chaos.load import ReplayLoad
from drumline.infra.chaos.progress import PipelineProgress, ProgressSnapshot
from drumline.infra.chaos.targets import OPTIONAL, PROGRAMS, STATUSES, KillTarget
from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.servers import ClickHouseSettings, RetentionSettings
from drumline.infra.config.settings import Settings, SinkSettings, StreamSettings
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, running_stack
from drumline.infra.localstack.processes import own_processes
from drumline.infra.runtime.processes import ManagedProcess, check_all

TICK_S = 0.2
RECOVERY_S = 600.0


class Stuck(RuntimeError):
    """No part makes progress. The message names it."""


def settings_in(folder: Path) -> Settings:
    """Return the settings of a private stack in `folder`.

    Recorded times are kept, so retention is off. Small ranges give more moments to be killed in. `idle_s` exceeds the 5
    s of the default: a replay that is suspended, or whose agent is down, is silent for longer.
    """
    for_ever = RetentionSettings(**dict.fromkeys(RetentionSettings.model_fields, 0))
    return ephemeral_settings(
        folder / "state",
        clickhouse=ClickHouseSettings(retention=for_ever),
        stream=StreamSettings(window_steps=5, idle_s=45, instance="chaos", metrics_port=0),
        sink=SinkSettings(flush_rows=50_000, flush_s=0.5, instance="chaos", metrics_port=0),
        log_level="WARNING",
    )


class System:
    """Owns the programs and the load; one thread calls it, and calls `tick` whenever it waits.

    programs: by part.
    """

    def __init__(self, settings: Settings, recording: Path, loops: int, targets: Iterable[KillTarget]) -> None:
        self.settings, self.env = settings, environment(settings)
        named = {part for target in targets for part in target.parts}
        logs = settings.local.state / "logs"
        self.programs = {
            part: ManagedProcess(args[0], list(args), logs / f"chaos-{part}.log", self.env, restarts=100)
            for part, args in PROGRAMS.items()
            if part in named or part not in OPTIONAL
        }
        spool = settings.spool.root if "agent" in named else None
        self.load = ReplayLoad(recording, self.env, logs / "chaos-replay.log", loops, spool)
        self.progress = PipelineProgress(settings)
        self._ticked = 0.0

    def tick(self) -> ProgressSnapshot | None:
        """Poll progress, keep the load flowing, restart exited programs. Returns None while the broker is away."""
        time.sleep(max(0.0, self._ticked + TICK_S - time.monotonic()))
        self._ticked = time.monotonic()
        check_all(self.programs.values())
        seen = self.progress.poll()
        self.load.tick(seen, self._ticked)
        return seen

    def tick_for(self, seconds: float) -> None:
        """Tick for that time; its end is exact, so that no moment within a tick is preferred for kills."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 2 * TICK_S:
            self.tick()
        time.sleep(max(0.0, left))

    def is_busy(self, target: KillTarget) -> bool:
        """Return whether all groups that the death of the target would stall have work. Takes one tick."""
        seen = self.tick()
        if seen is None or ("published" in target.stalls and not self.load.spools()):
            return False
        return all(seen.lag.get(group, 1) for group in target.stalls)

    def wait_recovered(self, target: KillTarget, killed_s: float, base: ProgressSnapshot | None) -> float:
        """Wait until all groups that the kill stalls have moved on from `base` or have no work left.

        Returns the seconds since `killed_s`. `base` None: from the first reading. Raises Stuck.
        """
        while time.monotonic() < killed_s + RECOVERY_S:
            seen = self.tick()
            base = base or seen
            if seen is None or base is None:
                continue
            if all(seen.done[group] > base.done[group] or seen.lag.get(group) == 0 for group in target.stalls):
                return time.monotonic() - killed_s
        raise Stuck(f"{target.name} was killed, and after {RECOVERY_S:.0f} s {', '.join(target.stalls)} does not move")

    def kill(self, target: KillTarget, rng: random.Random) -> tuple[str, ProgressSnapshot | None]:
        """Kill all parts of the target at once (SIGKILL) and restart them; return the work in flight and the progress
        then.
        """
        stack_processes = own_processes(self.settings)
        stack = [process for part in target.parts if part in stack_processes for process in stack_processes[part]]
        statuses = read_statuses(self.settings, 0)
        loaded, spools = self.load.is_flowing, self.load.spools()
        parts = [self.programs[part] for part in target.parts if part in self.programs]
        victims = [*(p.pid for p in parts if p.pid), *(process.pid for process in stack)]
        rng.shuffle(victims)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for program in parts:
            program.kill()
        psutil.wait_procs(stack, timeout=10)
        self.progress.restart_cycles()
        seen = self.progress.poll()
        in_flight = []
        if "broker" in target.parts:
            in_flight.append("publishing" if loaded else "replay between two runs or held back")
        in_flight += [
            interrupted_work.of_worker(statuses.get(name)) for part, name in STATUSES.items() if part in target.parts
        ]
        if "agent" in target.parts:
            in_flight.append(interrupted_work.of_agent(spools))
        if seen is not None and ("sink" in target.parts or "engine" in target.parts):
            in_flight.append(self._of_sink(seen, "engine" in target.parts, rng))
        for program in parts:
            program.start()
        return "; ".join(in_flight), seen

    def _of_sink(self, seen: ProgressSnapshot, engine_died: bool, rng: random.Random) -> str:
        """Half of the time the sink restarts before its engine does; then ClickHouse cannot be queried."""
        if engine_died and rng.random() < 0.5:
            return interrupted_work.of_sink(seen, None, "")
        local_stack.wait_for_stack(self.settings)
        client = clickhouse.connect(self.settings)
        try:
            return interrupted_work.of_sink(seen, client, self.settings.clickhouse.database)
        finally:
            client.close()

    def stop(self) -> None:
        """Stop load and programs."""
        self.load.stop()
        for program in self.programs.values():
            program.stop()
        self.progress.close()


@contextmanager
def running(settings: Settings, recording: Path, loops: int, targets: Iterable[KillTarget]) -> Iterator[System]:
    """Yield the running system; stop it at the end and keep its data. Raises StackError."""
    with running_stack(settings):
        system = System(settings, recording, loops, targets)
        try:
            for program in system.programs.values():
                program.start()
            yield system
        finally:
            system.stop()
