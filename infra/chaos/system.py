"""Everything that runs in a campaign: a private stack, worker, sink, load; and how parts of it are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from drumline.infra.chaos import interrupted_work as interrupted
from drumline.infra.chaos.load import Load
from drumline.infra.chaos.progress import Progress, Snapshot
from drumline.infra.chaos.targets import OPTIONAL, PROGRAMS, STATUSES, Target
from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.servers import ClickHouseSettings, RetentionSettings
from drumline.infra.config.settings import Settings, SinkSettings, StreamSettings
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings, running_stack
from drumline.infra.localstack.processes import own_processes
from drumline.infra.runtime.processes import ManagedProcess, check_all

TURN_S = 0.2
RECOVERY_S = 600.0


class Stuck(RuntimeError):
    """Nothing moves any more. The message says what."""


def settings_in(folder: Path) -> Settings:
    """A private stack in `folder`. Recorded times are kept, so nothing may grow old; small ranges give more moments
    to be killed in. A replay that is held back, or whose agent is dead, is silent for longer than the usual 5 s."""
    for_ever = RetentionSettings(**dict.fromkeys(RetentionSettings.model_fields, 0))
    return ephemeral_settings(
        folder / "state",
        clickhouse=ClickHouseSettings(retention=for_ever),
        stream=StreamSettings(window_steps=5, idle_s=45, instance="chaos", metrics_port=0),
        sink=SinkSettings(flush_rows=50_000, flush_s=0.5, instance="chaos", metrics_port=0),
        log_level="WARNING",
    )


class System:
    """`programs`: by part. All that one thread does between kills is `turn`."""

    def __init__(self, settings: Settings, recording: Path, loops: int, targets: Iterable[Target]) -> None:
        self.settings, self.env = settings, environment(settings)
        named = {part for target in targets for part in target.parts}
        logs = settings.local.state / "logs"
        self.programs = {
            part: ManagedProcess(args[0], list(args), logs / f"chaos-{part}.log", self.env, restarts=100)
            for part, args in PROGRAMS.items()
            if part in named or part not in OPTIONAL
        }
        spool = settings.spool.root if "agent" in named else None
        self.load = Load(recording, self.env, logs / "chaos-replay.log", loops, spool)
        self.progress = Progress(settings)
        self._turned = 0.0

    def turn(self) -> Snapshot | None:
        """Look, keep the load flowing, start what died. None while the broker is away."""
        time.sleep(max(0.0, self._turned + TURN_S - time.monotonic()))
        self._turned = time.monotonic()
        check_all(self.programs.values())
        seen = self.progress.look()
        self.load.turn(seen, self._turned)
        return seen

    def pause(self, seconds: float) -> None:
        """Turns for about so long; exact in its end, so that no moment of a turn is preferred."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 2 * TURN_S:
            self.turn()
        time.sleep(max(0.0, left))

    def busy(self, target: Target) -> bool:
        """Whether all that the target's death would stall has something to do. One turn."""
        seen = self.turn()
        if seen is None or ("published" in target.stalls and not self.load.spools()):
            return False
        return all(seen.lag.get(group, 1) for group in target.stalls)

    def flowing(self, target: Target, killed_s: float, base: Snapshot | None) -> float:
        """Wait until all that the target's death stalls has moved on from `base` (None: from what is seen first), or
        has nothing left to do; seconds since `killed_s`. Raises Stuck."""
        while time.monotonic() < killed_s + RECOVERY_S:
            seen = self.turn()
            base = base or seen
            if seen is None or base is None:
                continue
            if all(seen.done[group] > base.done[group] or seen.lag.get(group) == 0 for group in target.stalls):
                return time.monotonic() - killed_s
        raise Stuck(f"{target.name} was killed, and after {RECOVERY_S:.0f} s {', '.join(target.stalls)} does not move")

    def kill(self, target: Target, rng: random.Random) -> tuple[str, Snapshot | None]:
        """SIGKILL to all parts at once; what it interrupted, and how far everything was. Starts them again."""
        own = own_processes(self.settings)
        stack = [process for part in target.parts if part in own for process in own[part]]
        statuses = read_statuses(self.settings, 0)
        loaded, spools = self.load.flowing, self.load.spools()
        parts = [self.programs[part] for part in target.parts if part in self.programs]
        victims = [*(p.pid for p in parts if p.pid), *(process.pid for process in stack)]
        rng.shuffle(victims)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for program in parts:
            program.kill()
        psutil.wait_procs(stack, timeout=10)
        self.progress.forget_moves()
        seen = self.progress.look()
        what = []
        if "broker" in target.parts:
            what.append("publishing" if loaded else "replay between two runs or held back")
        what += [interrupted.of_worker(statuses.get(name)) for part, name in STATUSES.items() if part in target.parts]
        if "agent" in target.parts:
            what.append(interrupted.of_agent(spools))
        if seen is not None and ("sink" in target.parts or "engine" in target.parts):
            what.append(self._of_sink(seen, "engine" in target.parts, rng))
        for program in parts:
            program.start()
        return "; ".join(what), seen

    def _of_sink(self, seen: Snapshot, engine_died: bool, rng: random.Random) -> str:
        """Half of the time a sink whose engine died is started before that is back: then nobody can look."""
        if engine_died and rng.random() < 0.5:
            return interrupted.of_sink(seen, None, "")
        local_stack.wait_for_stack(self.settings)
        client = clickhouse.connect(self.settings)
        try:
            return interrupted.of_sink(seen, client, self.settings.clickhouse.database)
        finally:
            client.close()

    def stop(self) -> None:
        self.load.stop()
        for program in self.programs.values():
            program.stop()
        self.progress.close()


@contextmanager
def running(settings: Settings, recording: Path, loops: int, targets: Iterable[Target]) -> Iterator[System]:
    """The whole system, stopped at the end; data stays. Raises StackError."""
    with running_stack(settings):
        system = System(settings, recording, loops, targets)
        try:
            for program in system.programs.values():
                program.start()
            yield system
        finally:
            system.stop()
