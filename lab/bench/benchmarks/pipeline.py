"""Measures the whole pipeline on one machine: at full speed, then at the speed of the recorded job."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path

from drumline.infra.config.settings import Settings, SinkSettings, StreamSettings
from drumline.lab.bench.benchmarks.recorded_speed import Course, measure_recorded_speed
from drumline.lab.bench.benchmarks.sink import DISK_TARGET, bytes_a_row
from drumline.lab.bench.benchmarks.verdict_latency import replay_paced
from drumline.lab.bench.processes.ephemeral_stack import private_stack
from drumline.lab.bench.processes.process_watch import over_time
from drumline.lab.bench.processes.profiling import profiled
from drumline.lab.bench.processes.running_pipeline import RunningPipeline
from drumline.lab.bench.result import BenchReport, Progress
from drumline.schemas.topics import Topic

TARGET, MEMORY_MIB = 200e3, 400
PARTS = ("throughput", "delays", "cost")


def bench_pipeline(
    folder: Path,
    loops: int = 8,
    paced: int = 3,
    progress: Progress = lambda _: None,
    profile: Path | None = None,
    parts: Collection[str] = PARTS,
    course: Course | None = None,
) -> BenchReport:
    """Replay `loops` repetitions as fast as possible, `paced` at the recorded speed for delays, then more for the cost.

    With `profile`, a folder, write pipeline-stream.txt and pipeline-sink.txt of the first part. `parts`: those to
    measure. `course`: of the last one.
    """
    report = BenchReport("pipeline", f"the recorded job, {loops} loops at full speed, {paced} at its own", "none")
    if "throughput" in parts or "delays" in parts:
        progress("starting Kafka and ClickHouse")
        with private_stack() as settings:
            running = RunningPipeline(settings, folder)
            with running.started():
                if "throughput" in parts:
                    progress("as fast as possible")
                    _full_speed(running, loops, report, profile)
                if "delays" in parts:
                    progress("at its own speed")
                    replay_paced(running, paced, report)
    if "cost" in parts:
        progress("starting Kafka and ClickHouse")
        with private_stack() as settings:  # without the merges of what came before
            running = RunningPipeline(_as_in_production(settings), folder)
            with running.started():
                measure_recorded_speed(running, report, progress, course)
    return report


def _as_in_production(settings: Settings) -> Settings:
    """Return settings with production's flush times and windows."""
    sink = settings.sink.model_copy(update={"bulk_flush_s": SinkSettings().bulk_flush_s})
    stream = settings.stream.model_copy(update={"window_steps": StreamSettings().window_steps})
    return settings.model_copy(update={"sink": sink, "stream": stream})


def _full_speed(running: RunningPipeline, loops: int, report: BenchReport, profile: Path | None) -> None:
    began = time.monotonic()
    with ExitStack() as stack:
        watch = stack.enter_context(running.watch())
        for name, program in running.programs.items():
            into = profile / f"pipeline-{name}.txt" if profile else None
            stack.enter_context(profiled(into, f"{name} in the pipeline at full speed", program.pid or 0))
        with running.replay("--speed", "max", "--loop", str(loops)) as replay:
            summary = replay.summary()
        published = time.monotonic() - began
        kernels = summary["rows"][Topic.KERNEL]
        count = f"SELECT count() AS n FROM kernels WHERE run = '{summary['run']}'"
        running.wait(lambda: running.lag() == 0 and running.query(count)[0]["n"] == kernels, "rows are missing")
        wall = time.monotonic() - began
        on_disk = bytes_a_row(running.client, running.settings.clickhouse.database, "kernels")
    rows, messages = sum(summary["rows"].values()), sum(summary["batches"].values())
    report.add("kernels, first published to last stored", kernels / wall, "kernels/s", target=TARGET)
    report.add("all rows", rows / wall, "rows/s")
    report.add("messages", messages / wall, "1/s")
    report.add("replay alone until acknowledged", kernels / published, "kernels/s")
    for name, used in watch.cpu_s.items():
        report.add(f"CPU per million rows: {name}", used / rows * 1e6, "s")
    for name in ("stream", "sink", "broker", "engine"):
        values = watch.memory.get(name, [])
        target = {"target": MEMORY_MIB, "at_most": True} if name in ("stream", "sink") else {}
        report.add(f"memory of {name}, most", max(values, default=0) / 2**20, "MiB", **target)
        report.notes.append(f"Memory of {name}, mean of each tenth of the time, MiB: {over_time(values, 2**20)}.")
    for name, behind in watch.lag.items():
        report.add(f"lag of {name}, most", max(behind, default=0), "records")
        report.notes.append(f"Lag of {name}, mean of each tenth, records: {over_time(behind)}.")
    report.add("bytes a row on disk, kernels, as left", on_disk, "B", target=DISK_TARGET, at_most=True)
    report.notes.append(
        f"Full speed: {kernels:,} kernels, {rows:,} rows in {wall:.1f} s, of which {published:.1f} s publishing "
        "on the same cores. Nothing limits the replay, so lag rises while it publishes."
    )
