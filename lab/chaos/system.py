"""Runs all parts of a chaos run on a private stack: workers, sinks, agent, load; disturbs and restarts them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings, SinkSettings, StreamSettings
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, running_stack
from drumline.infra.localstack.kafka.broker import broker_name, numbers
from drumline.infra.localstack.processes import own_processes
from drumline.infra.runtime.processes import ManagedProcess, check_all
from drumline.lab.chaos import clocks, disks, interrupted_work
from drumline.lab.chaos.brokers import Brokers
from drumline.lab.chaos.load import ReplayLoad
from drumline.lab.chaos.progress import PipelineProgress, ProgressSnapshot
from drumline.lab.chaos.rejoins import rejoining
from drumline.lab.chaos.spans import Disturbance, Spans, halt
from drumline.lab.chaos.targets import (
    ENDED,
    LEADER,
    OPTIONAL,
    PROGRAMS,
    ROLLING,
    STATUSES,
    STORING,
    SUCCESSORS,
    KillTarget,
)

TICK_S = 0.2
RECOVERY_S = 600.0
#: Time that a broker has for a clean stop; s.
STOP_S = 60.0
#: A storm ends a program some ten times.
RESTARTS = 1_000


class Stuck(RuntimeError):
    """No part makes progress. The message names it."""


def settings_in(folder: Path, targets: Iterable[KillTarget], brokers: int = 1) -> Settings:
    """Return the settings of a private stack in `folder`.

    Small ranges give more moments to be killed in. `idle_s` exceeds the 5
    s of the default: a replay that is suspended, or whose agent or broker is halted, is silent for longer. Every drain
    waits for that long.
    """
    idle_s = 60 if any(target.lasts for target in targets) else 45
    return ephemeral_settings(
        folder / "state",
        brokers=brokers,
        stream=StreamSettings(window_steps=5, idle_s=idle_s),
        sink=SinkSettings(flush_rows=50_000, flush_s=0.5, bulk_flush_s=0.5),
        instance="chaos",
        log_level="WARNING",
    )


class System:
    """Owns the programs and the load; one thread calls it, and calls `tick` whenever it waits.

    programs: by part. spans: disturbances that end by themselves. clocks: by part, if they step.
    """

    def __init__(self, settings: Settings, recording: Path, loops: int, targets: Iterable[KillTarget]) -> None:
        self.settings, self.env = settings, environment(settings)
        targets = list(targets)
        named = {part for target in targets for part in target.parts}
        named |= SUCCESSORS if any(target.lasts for target in targets) else set()
        logs = settings.local.state / "logs"
        self.programs = {
            part: ManagedProcess(args[0], list(args), logs / f"chaos-{part}.log", self.env, restarts=RESTARTS)
            for part, args in PROGRAMS.items()
            if part in named or part not in OPTIONAL
        }
        self.clocks: dict[str, clocks.SteppingClock] = {}
        if any(target.signal == "step" for target in targets):
            library = clocks.build(settings.local.state)
            self.clocks = {part: clocks.SteppingClock(library, part) for part in self.programs}
            for part, clock in self.clocks.items():
                self.programs[part].add_environment(clock.environment())
        spool = settings.spool.root if "agent" in named else None
        self.load = ReplayLoad(recording, self.env, logs / "chaos-replay.log", loops, spool)
        self.progress = PipelineProgress(settings)
        self.brokers = Brokers(settings)
        self.spans = Spans()
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

        Returns the seconds since `killed_s`, the time of the kill or of the end of a halt. `base` None: from the first
        reading after that. Raises Stuck.
        """
        while time.monotonic() < killed_s:
            self.tick()
        while time.monotonic() < killed_s + RECOVERY_S:
            seen = self.tick()
            base = base or seen
            if seen is None or base is None:
                continue
            lag = {**seen.lag, "published": len(self.load.spools())}
            if all(seen.done[group] > base.done[group] or lag[group] == 0 for group in target.stalls):
                return time.monotonic() - killed_s
        groups, parts = ", ".join(sorted(target.stalls)), "+".join(target.parts)
        raise Stuck(f"{parts} {ENDED[target.signal]}, and after {RECOVERY_S:.0f} s {groups} does not move")

    def disturb(
        self, target: KillTarget, rng: random.Random, lasts_s: float = 0.0, step_s: int = 0
    ) -> tuple[str, float, ProgressSnapshot | None]:
        """Kill all parts of the target at once (SIGKILL) and restart them, or do to them what lasts for `lasts_s`.

        Returns the work in flight, when the parts run again (monotonic; s), and the progress at a kill. Does not wait
        for the end of what lasts; a rolling restart is over.
        """
        servers = own_processes(self.settings)
        parts = [name for part in target.parts for name in self.brokers.chosen(part, rng)]
        stack = [process for part in parts for process in servers.get(part, ())]
        programs = [self.programs[part] for part in target.parts if part in self.programs]
        statuses = read_statuses(self.settings, 0)
        loaded, spools = self.load.is_flowing, self.load.spools()
        victims = [*(psutil.Process(program.pid) for program in programs if program.pid), *stack]
        rng.shuffle(victims)
        if target.lasts:
            runs_s = self.spans.begin(self._spans(target, parts, victims, step_s, rng), lasts_s)
        else:
            runs_s = time.monotonic()
            for process in victims:
                process.kill()
            for program in programs:
                program.kill()
            psutil.wait_procs(stack, timeout=10)
            if ROLLING in target.parts:
                self._restart_brokers()
                runs_s = time.monotonic()
        self.progress.restart_cycles()
        seen = None if target.lasts and target.has_broker else self.progress.poll()
        in_flight = []
        if target.has_broker:
            in_flight.append("publishing" if loaded else "replay between two runs or held back")
        in_flight += [
            interrupted_work.of_worker(statuses.get(name)) for part, name in STATUSES.items() if part in target.parts
        ]
        if "agent" in target.parts:
            in_flight.append(interrupted_work.of_agent(spools))
        if seen is not None and not STORING.isdisjoint(target.parts):
            in_flight.append(self._of_sink(seen, target, rng))
        if not target.lasts:
            for program in programs:
                program.start()
        return "; ".join(in_flight), runs_s, None if target.lasts else seen

    def _spans(
        self, target: KillTarget, parts: list[str], victims: list[psutil.Process], step_s: int, rng: random.Random
    ) -> list[Disturbance]:
        """Return what lasts: full disks, steps of clocks, storms of rebalances, or halts."""
        if target.signal == "full":
            folders = disks.folders(self.settings)
            return [disks.full(folders[part]) for part in parts]
        if target.signal == "step":
            return [self.clocks[part].stepped(step_s) for part in parts]
        if target.signal == "rejoin":
            return [rejoining(part, self.programs[part], rng.getrandbits(32)) for part in parts]
        return [halt(process) for process in victims]

    def _restart_brokers(self) -> None:
        """Stop one broker after the other cleanly, each once all replicas are in sync. Raises Stuck."""
        for name in map(broker_name, numbers(self.settings)):
            processes = own_processes(self.settings)[name]
            for process in processes:
                process.terminate()
            if psutil.wait_procs(processes, timeout=STOP_S)[1]:
                raise Stuck(f"{name} does not stop within {STOP_S:.0f} s")
            until = time.monotonic() + RECOVERY_S
            while not self.brokers.in_sync():
                if time.monotonic() > until:
                    raise Stuck(f"{name} was restarted, and after {RECOVERY_S:.0f} s not all replicas are in sync")
                self.tick()

    def _of_sink(self, seen: ProgressSnapshot, target: KillTarget, rng: random.Random) -> str:
        """Return the sink's work; without a query where the engine is halted.

        Half of the time the sink restarts before its engine does; then ClickHouse cannot be queried either.
        """
        if "engine" in target.parts and (target.lasts or rng.random() < 0.5):
            return interrupted_work.of_sink(seen, None, "")
        local_stack.wait_for_stack(self.settings)
        client = clickhouse.connect(self.settings)
        try:
            return interrupted_work.of_sink(seen, client, self.settings.clickhouse.database)
        finally:
            client.close()

    def stop(self) -> None:
        """Stop load and programs; what lasts ends."""
        self.spans.end()
        self.load.stop()
        for program in self.programs.values():
            program.stop()
        self.progress.close()


@contextmanager
def running(settings: Settings, recording: Path, loops: int, targets: Iterable[KillTarget]) -> Iterator[System]:
    """Yield the running system; stop it at the end and keep its data. Raises StackError."""
    targets = list(targets)
    full = {part for target in targets if target.signal == "full" for part in target.parts}
    if LEADER in full:
        full |= set(disks.folders(settings))
    with disks.mounted(settings, full), running_stack(settings):
        system = System(settings, recording, loops, targets)
        try:
            for program in system.programs.values():
                program.start()
            yield system
        finally:
            system.stop()
