"""Times queries as a reader's client sees them, with the CPU that the engine spends."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import Client
from drumline.infra.config.local_credentials import local_password
from drumline.infra.config.settings import Settings
from drumline.infra.localstack.ephemeral import environment
from drumline.infra.localstack.processes import own_processes
from drumline.lab.bench.result import BenchReport, Progress

#: Runs a statement with parameters once; returns its seconds and the engine's CPU seconds.
RunQuery = Callable[[str, Mapping[str, str]], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """Holds the wall-clock `seconds` of each repetition, and the mean CPU seconds of the engine."""

    name: str
    seconds: tuple[float, ...]
    cpu_s: float

    @property
    def p95(self) -> float:
        """Return the 95th percentile of the repetitions; s."""
        return float(np.percentile(self.seconds, 95))


@contextmanager
def reader(settings: Settings) -> Iterator[tuple[Client, Callable[[], float]]]:
    """Yield a client and a function that returns the CPU seconds of the engine so far.

    Queries run as Grafana's user, whose quota admits that many.
    """
    reader = {"reader": "grafana", "reader_password": local_password(settings, "grafana")}
    grafana = settings.model_copy(update={"clickhouse": settings.clickhouse.model_copy(update=reader)})
    client = clickhouse.connect(grafana, reader=True, database=settings.clickhouse.database)
    [engine] = own_processes(settings)["engine"]

    def cpu() -> float:
        return sum(engine.cpu_times()[:2])

    yield client, cpu
    client.close()


@contextmanager
def query_runner(settings: Settings) -> Iterator[RunQuery]:
    """Yield a function that runs a query once and returns (seconds, CPU seconds of the engine)."""
    with reader(settings) as (client, cpu):

        def run_query(sql: str, values: Mapping[str, str]) -> tuple[float, float]:
            before, started = cpu(), time.perf_counter()
            client.raw_query(sql, parameters=dict(values), fmt="Native", settings={"max_threads": 2})
            return time.perf_counter() - started, cpu() - before

        yield run_query


@dataclass(frozen=True)
class Timer:
    """Times queries; the report notes those that fail."""

    run_query: RunQuery
    repeats: int
    report: BenchReport
    progress: Progress

    def times(self, title: str, queries: Sequence[tuple[str, str, Mapping[str, str]]]) -> list[QueryTimes]:
        """Run each query once to warm up, then `repeats` times; leave out those that fail."""
        timed = []
        for number, (name, sql, values) in enumerate(queries, 1):
            self.progress(f"{title}: {number} of {len(queries)}, {name}")
            try:
                self.run_query(sql, values)
                took = [self.run_query(sql, values) for _ in range(self.repeats)]
            except Exception as error:
                self.report.notes.append(f"FAILED {name}: {clickhouse.failure(error)}")
                continue
            cpu_s = sum(cpu for _, cpu in took) / self.repeats
            timed.append(QueryTimes(name, tuple(wall for wall, _ in took), cpu_s))
        return timed


@dataclass(frozen=True)
class ProgramTimer:
    """Times commands of `drumline` from start to end of their process; the report notes those that fail."""

    settings: Settings
    repeats: int
    report: BenchReport
    progress: Progress

    def times(self, commands: Sequence[Sequence[str]]) -> list[QueryTimes]:
        """Run each command once to warm up, then `repeats` times; leave out those that fail.

        Modules are compiled once, as those of an installed program are, whatever this process was told about bytecode.
        """
        timed = []
        with reader(self.settings) as (_, cpu), tempfile.TemporaryDirectory() as folder:
            variables = environment(self.settings) | {"PYTHONPYCACHEPREFIX": f"{folder}/bytecode"}
            variables.pop("PYTHONDONTWRITEBYTECODE", None)
            for number, arguments in enumerate(commands, 1):
                name = f"drumline {shlex.join(arguments)}"
                self.progress(f"programs: {number} of {len(commands)}, {name}")
                seconds, before = [], 0.0
                for repetition in range(self.repeats + 1):
                    if repetition == 1:  # the first one warms caches, and compiles
                        before = cpu()
                    started = time.perf_counter()
                    command = [sys.executable, "-m", "drumline.cli.app", *arguments]
                    done = subprocess.run(
                        command, env=variables, cwd=folder, capture_output=True, text=True, check=False
                    )
                    seconds.append(time.perf_counter() - started)
                    if done.returncode:
                        error = " ".join(done.stderr.split())[-300:]
                        self.report.notes.append(f"FAILED {name}: exit {done.returncode}: {error}")
                        break
                else:
                    timed.append(QueryTimes(name, tuple(seconds[1:]), (cpu() - before) / self.repeats))
        return timed
