"""Worker and sink on a private stack, and what is asked of them while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from drumline.infra.bench.processes.process_watch import Watch
from drumline.infra.bench.processes.replay_process import Replay, replaying
from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.offsets import Offsets
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack.ephemeral import environment
from drumline.infra.localstack.processes import own_processes
from drumline.infra.runtime.processes import ManagedProcess
from drumline.schemas.model import has_schema
from drumline.schemas.topics import Topic

#: How long may pass until everything is stored; s.
DRAIN_S = 180.0


class Running:
    """Worker and sink as processes on a private stack."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder, self.env = settings, folder, environment(settings)
        self._logs = settings.local.state / "logs"
        self.programs = {
            name: ManagedProcess(name, [name], self._logs / f"bench-{name}.log", self.env, 0)
            for name in ("stream", "sink")
        }
        self.client = clickhouse.connect(settings, database=settings.clickhouse.database)
        self.offsets = Offsets(settings)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Worker and sink run meanwhile, and are stopped then. Raises RuntimeError if the worker does not start."""
        try:
            for program in self.programs.values():
                program.start()
            self.wait(lambda: self.lag() == 0, "the worker does not start")
            yield
        finally:
            for program in self.programs.values():
                program.stop()
            self.client.close()

    def watch(self, every_s: float = 0.5, **others: int) -> Watch:
        """Memory and CPU of the pipeline's processes and of `others` (name -> pid), and both lags."""
        lag = {"the worker": self.lag, "the sink": self.sink_lag}
        return Watch({**self.pids, **others}, lag, every_s)

    @property
    def pids(self) -> dict[str, int]:
        stack = {n: p[0].pid for n, p in own_processes(self.settings).items() if p and n != "supervisor"}
        return {**{name: program.pid or 0 for name, program in self.programs.items()}, **stack}

    def replay(self, *options: str) -> AbstractContextManager[Replay]:
        """A replay of the recording into this stack; it does not outlive the block."""
        return replaying(self.folder, self.env, self._logs / "bench-replay.log", *options)

    def query(self, sql: str) -> list[dict[str, Any]]:
        for program in self.programs.values():
            program.check()
        return clickhouse.rows(self.client, sql)

    def lag(self) -> int | None:
        """Records that the worker has not applied yet."""
        lags = [status["lag"] for status in read_statuses(self.settings, 0).values()]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if lags and len(known) == len(lags) else None

    def all_stored(self) -> bool:
        """Nothing is left to work off, to emit or to store."""
        statuses = read_statuses(self.settings, 0).values()
        quiet = statuses and not any(status["open"] or status["unsettled"] for status in statuses)
        return bool(quiet) and self.lag() == 0 and self.sink_lag() == 0

    def sink_lag(self) -> int:
        """Records that the sink has not committed yet."""
        ends = self.offsets.ends(self.offsets.places([topic for topic in Topic if has_schema(topic)]))
        stored = self.offsets.committed(self.settings.sink.group, ends)
        return sum(end - stored.get(place, (0, ""))[0] for place, end in ends.items())

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + DRAIN_S
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"{what}: not within {DRAIN_S:.0f} s")
            time.sleep(0.2)
