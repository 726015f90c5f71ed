"""Runs worker and sink on a private stack and answers queries about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.offsets import Offsets
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack.ephemeral import environment
from drumline.infra.localstack.processes import own_processes
from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.bench.processes.process_watch import ProcessWatch
from drumline.lab.bench.processes.replay_process import ReplayProcess, replaying
from drumline.schemas.model import has_schema
from drumline.schemas.topics import Topic

#: Time limit until all rows are stored; s.
DRAIN_S = 180.0


class RunningPipeline:
    """Runs worker and sink as processes of a private stack.

    A benchmark makes one inside `private_stack`; `started` bounds their lifetime and closes the client. All methods
    block and belong to one thread.
    """

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
        """Run worker and sink for the block, then stop them. Raises RuntimeError if the worker does not start."""
        try:
            for program in self.programs.values():
                program.start()
            self.wait(lambda: self.lag() == 0, "the worker does not start")
            yield
        finally:
            for program in self.programs.values():
                program.stop()
            self.client.close()

    def watch(self, every_s: float = 0.5, **pids: int) -> ProcessWatch:
        """Return a watch over memory, CPU and lag of the pipeline, and of further processes (name -> pid)."""
        lag = {"the worker": self.lag, "the sink": self.sink_lag}
        return ProcessWatch({**self.pids, **pids}, lag, every_s)

    @property
    def pids(self) -> dict[str, int]:
        """Return name -> pid of worker, sink, broker and engine."""
        stack = {n: p[0].pid for n, p in own_processes(self.settings).items() if p and n != "supervisor"}
        return {**{name: program.pid or 0 for name, program in self.programs.items()}, **stack}

    def replay(self, *options: str) -> AbstractContextManager[ReplayProcess]:
        """Return a replay of the recording into this stack, which is stopped at the end of the block."""
        return replaying(self.folder, self.env, self._logs / "bench-replay.log", *options)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a query. Raises if worker or sink has ended."""
        for program in self.programs.values():
            program.check()
        return clickhouse.rows(self.client, sql)

    def lag(self) -> int | None:
        """Return the number of records that the worker has not applied yet; None if not known."""
        lags = [status["lag"] for status in read_statuses(self.settings, 0).values()]
        known = [lag for lag in lags if lag is not None]
        return sum(known) if lags and len(known) == len(lags) else None

    def all_stored(self) -> bool:
        """Return whether nothing is left to drain, to emit or to store."""
        statuses = read_statuses(self.settings, 0).values()
        quiet = statuses and not any(status["open"] or status["unsettled"] for status in statuses)
        return bool(quiet) and self.lag() == 0 and self.sink_lag() == 0

    def sink_lag(self) -> int:
        """Return the number of records that the sink has not committed yet."""
        ends = self.offsets.ends(self.offsets.places([topic for topic in Topic if has_schema(topic)]))
        stored = self.offsets.committed(self.settings.sink.group, ends)
        return sum(end - stored.get(place, (0, ""))[0] for place, end in ends.items())

    def wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Wait until `condition` holds. Raises RuntimeError, with the text `otherwise`, after DRAIN_S."""
        until = time.monotonic() + DRAIN_S
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"{otherwise}: not within {DRAIN_S:.0f} s")
            time.sleep(0.2)
