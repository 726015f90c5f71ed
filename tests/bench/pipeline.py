"""The whole pipeline on one machine: as fast as it goes, then at the speed of the recorded job."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drumline.bench.figures import Report, percentiles
from drumline.bench.private import private_stack
from drumline.bench.watch import Watch, quarters
from drumline.infra import clickhouse
from drumline.infra import stack as local_stack
from drumline.infra.drain import read_statuses
from drumline.infra.private import environment
from drumline.infra.programs import Program
from drumline.infra.settings import Settings

BAR, MEMORY_MIB, DELAY_S = 200e3, 400, 5
DRAIN_S = 180.0
Progress = Callable[[str], None]


class Running:
    """Worker and sink as processes on a private stack."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder, self.env = settings, folder, environment(settings)
        logs = settings.local.state / "logs"
        self.programs = {
            name: Program(name, [name], logs / f"bench-{name}.log", self.env, 0) for name in ("stream", "sink")
        }
        self.client = clickhouse.connect(settings, database=settings.clickhouse.database)

    @property
    def pids(self) -> dict[str, int]:
        stack = {n: p[0].pid for n, p in local_stack.own_processes(self.settings).items() if p and n != "supervisor"}
        return {**{name: program.pid or 0 for name, program in self.programs.items()}, **stack}

    @contextmanager
    def replay(self, *options: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "drumline.infra.cli", "replay", str(self.folder), "--json", *options]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self.env, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)

    def query(self, sql: str) -> list[dict[str, Any]]:
        for program in self.programs.values():
            program.check()
        return clickhouse.rows(self.client, sql)

    def lag(self) -> int | None:
        """Records that the worker has not applied yet."""
        found = [status["lag"] for status in read_statuses(self.settings, 0).values()]
        return None if not found or None in found else int(sum(found))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + DRAIN_S
        while not condition():
            if time.monotonic() > until:
                raise RuntimeError(f"{what}: not within {DRAIN_S:.0f} s")
            time.sleep(0.2)


def first_delays(
    phases: Sequence[Mapping[str, Any]], seen: Sequence[Mapping[str, Any]], loops: int, steps: int
) -> list[float]:
    """For each fault, seconds from the end of the first window wholly inside it to the first row at warning or above.

    `seen`: rows with first_step, last_step, of_rank, severity, end_ns and seen_ns (when a query first gave them). A
    fault without such a row is left out: `drumline evaluate` is what judges verdicts. Pure.
    """
    found = []
    for loop in range(loops):
        for phase in phases:
            low, high = (phase[name] + loop * steps for name in ("first_step", "last_step"))
            inside = [r for r in seen if low <= r["first_step"] and r["last_step"] <= high]
            blamed = [r for r in inside if r["of_rank"] in phase["fault_ranks"] and r["severity"] >= 2]
            if blamed:
                found.append((min(r["seen_ns"] for r in blamed) - min(r["end_ns"] for r in inside)) / 1e9)
    return found


def bench_pipeline(folder: Path, loops: int = 8, paced: int = 3, progress: Progress = lambda _: None) -> Report:
    """`loops` repetitions as fast as possible, then `paced` at original speed for delays."""
    report = Report("pipeline", f"the recorded job, {loops} loops at full speed, {paced} at its own", "none")
    progress("starting Kafka and ClickHouse")
    with private_stack() as settings:
        running = Running(settings, folder)
        try:
            for program in running.programs.values():
                program.start()
            running.wait(lambda: running.lag() == 0, "the worker does not start")
            progress("as fast as possible")
            _full_speed(running, loops, report)
            progress("at original speed")
            _original_speed(running, paced, report)
        finally:
            for program in running.programs.values():
                program.stop()
            running.client.close()
    return report


def _full_speed(running: Running, loops: int, report: Report) -> None:
    began = time.monotonic()
    with Watch(running.pids, running.lag) as watch:
        with running.replay("--speed", "max", "--loop", str(loops)) as process:
            output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"drumline replay ended with {process.returncode}")
        published = time.monotonic() - began
        summary = json.loads(output)
        kernels = summary["rows"]["gpu.kernel.v1"]
        count = f"SELECT count() AS n FROM kernels WHERE run = '{summary['run']}'"
        running.wait(lambda: running.lag() == 0 and running.query(count)[0]["n"] == kernels, "rows are missing")
        wall = time.monotonic() - began
    rows, messages = sum(summary["rows"].values()), sum(summary["batches"].values())
    report.add("kernels, first published to last stored", kernels / wall, "kernels/s", bar=BAR)
    report.add("all rows", rows / wall, "rows/s")
    report.add("messages", messages / wall, "1/s")
    report.add("replay alone until acknowledged", kernels / published, "kernels/s")
    for name, used in watch.cpu_s.items():
        report.add(f"CPU per million rows: {name}", used / rows * 1e6, "s")
    for name in ("stream", "sink", "broker", "engine"):
        most, first, last = (value / 2**20 for value in quarters(watch.memory.get(name, [])))
        bar = {"bar": MEMORY_MIB, "most": True} if name in ("stream", "sink") else {}
        report.add(f"memory of {name}, most", most, "MiB", **bar)
        report.add(f"memory of {name}, first quarter", first, "MiB")
        report.add(f"memory of {name}, last quarter", last, "MiB")
    most, first, last = quarters([behind for _, behind in watch.lag])
    for what, value in (("most", most), ("first quarter", first), ("last quarter", last)):
        report.add(f"worker's lag, {what}", value, "records")
    report.notes.append(
        f"Full speed: {kernels:,} kernels, {rows:,} rows in {wall:.1f} s, of which {published:.1f} s publishing "
        "on the same cores. Nothing limits the replay, so lag rises while it publishes."
    )


def _original_speed(running: Running, loops: int, report: Report) -> None:
    manifest = json.loads((running.folder / "manifest.json").read_text())
    faults = [phase for phase in manifest["phases"] if phase.get("fault_ranks")]
    seen: dict[tuple[Any, ...], dict[str, Any]] = {}
    lags: list[int] = []
    done_at = 0.0

    def look(job: str) -> None:
        rows = running.query(
            "SELECT first_step, last_step, of_rank, severity, toUnixTimestamp64Nano(window_end) AS end_ns, "
            f"toUnixTimestamp64Milli(published) AS published_ms FROM stragglers WHERE job = '{job}'"
        )
        now = time.time_ns()
        for row in rows:
            key = (row["first_step"], row["last_step"], row["of_rank"], row["severity"])
            seen.setdefault(key, {**row, "seen_ns": now})
        behind = running.lag()
        if behind is not None:
            lags.append(behind)

    with running.replay("--speed", "1", "--loop", str(loops), "--job", "paced") as process:
        while not done_at or time.monotonic() < done_at + 10:
            look("paced")
            if not done_at and process.poll() is not None:
                done_at = time.monotonic()
            time.sleep(0.1)
    rows = list(seen.values())
    first: dict[int, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda r: int(r["seen_ns"])):
        first.setdefault(row["first_step"], row)
    steps = len(manifest["steps_rank0"])
    delays = first_delays(faults, rows, loops, steps)
    for name, value in percentiles(delays).items():
        bar = {"bar": DELAY_S, "most": True} if name == "p95" else {}
        report.add(f"fault's first window to straggler row, {name}", value, "s", **bar)
    for name, value in percentiles([(r["seen_ns"] - r["end_ns"]) / 1e9 for r in first.values()]).items():
        report.add(f"any window's end to its first row, {name}", value, "s")
    for name, value in percentiles([r["seen_ns"] / 1e9 - r["published_ms"] / 1e3 for r in first.values()]).items():
        report.add(f"of that, verdict in Kafka to row, {name}", value, "s")
    report.add("worker's lag at original speed, most", max(lags, default=0), "records")
    report.notes.append(
        f"Original speed: {len(delays)} of {len(faults) * loops} faults named, {len(first)} windows of "
        f"{running.settings.stream.window_steps} steps; ClickHouse asked every 0.1 s."
    )
