"""Measures the worker's stages at 4, 64 and 1,024 replayed ranks: CPU a kernel, messages, memory, workers needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.infra.bench.peak_load import PeakLoad, busiest, publish_busy
from drumline.infra.bench.processes.child_process import child
from drumline.infra.bench.processes.ephemeral_stack import private_stack
from drumline.infra.bench.result import BenchReport, Progress
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.offsets import Offsets
from drumline.schemas.topics import Topic
from drumline.streams.worker.app import wirings

RANKS, KERNELS, SECONDS = (4, 64, 1024), 8_000_000, 5.0
#: Largest deviation of the CPU per kernel from that of the smallest job.
WITHIN = 0.15
#: Share of a core that a worker may use in steady state; the rest is for catching up after a restart.
BUSY = 0.7
#: Stages whose work for one job stays on one worker: a communicator is one key, a job is one key.
WHOLE = ("communicator", "job")


@dataclass(frozen=True)
class JobSize:
    """Holds the results of one job size. `stages`: name -> values printed by stream_child."""

    load: PeakLoad
    stages: Mapping[str, Mapping[str, Any]]

    def cpu_s(self, stage: str) -> float:
        """Return the CPU seconds of one stage for a second of the job."""
        return float(self.stages[stage]["cpu_s"]) / self.load.seconds

    @property
    def all_cpu_s(self) -> float:
        """Return the CPU seconds of all stages for a second of the job."""
        return sum(map(self.cpu_s, self.stages))

    @property
    def kernel_cpu_s(self) -> float:
        """Return the CPU seconds of the kernel stage for a million kernels."""
        return float(self.stages["kernel-frequency"]["cpu_s"]) / self.load.rows[Topic.KERNEL] * 1e6

    @property
    def kernel_cost(self) -> float:
        """Return the same in reference workloads, timed meanwhile in that process.

        Such costs are comparable under different load of other programs.
        """
        return self.kernel_cpu_s / float(self.stages["kernel-frequency"]["reference_s"])

    @property
    def whole(self) -> str:
        """Return the larger of the stages whose work cannot be split over workers."""
        return max(WHOLE, key=self.cpu_s)

    @property
    def whole_cpu_s(self) -> float:
        """Return the CPU seconds of that stage for a second of the job."""
        return self.cpu_s(self.whole)

    @property
    def memory(self) -> int:
        """Return the largest resident size of any stage's worker; bytes."""
        return max(max(done["memory"], default=0) for done in self.stages.values())


def workers(all_cpu_s: float, whole_cpu_s: float, busy: float = BUSY) -> int:
    """Return how many workers a job needs for all its CPU seconds per second of the job; 0 if no number suffices.

    No number suffices where the part that cannot be split, `whole_cpu_s`, exceeds the share `busy` of a core.
    """
    return math.ceil(all_cpu_s / busy) if whole_cpu_s <= busy else 0


def measure(settings: Settings, folder: Path, ranks: int, repetitions: int, span: tuple[int, int],
             progress: Progress) -> JobSize:  # fmt: skip
    """Publish, then drain each stage in a worker of its own."""
    progress(f"{ranks:,} ranks: publishing")
    load = publish_busy(settings, folder, ranks, repetitions, span)
    stages = {}
    for wiring in wirings(settings):
        progress(f"{ranks:,} ranks: {wiring.name}")
        wanted = sum(load.messages[topic] or _end(settings, topic) for topic in wiring.inputs)
        stages[wiring.name] = child(settings, "stream_child", wiring.name, wanted)
    return JobSize(load, stages)


def _end(settings: Settings, topic: str) -> int:
    """Return the number of records in a topic that another stage has written."""
    offsets = Offsets(settings)
    return sum(offsets.ends(offsets.places([topic])).values())


def bench_scale(
    folder: Path,
    ranks: Sequence[int] = RANKS,
    kernels: int = KERNELS,
    seconds: float = SECONDS,
    progress: Progress = lambda _: None,
) -> BenchReport:
    """Give each size the same `seconds` of the recording, repeated until they are at least `kernels` in all.

    Sizes are measured in ascending order, beside the smallest one. Raises RuntimeError, ValueError.
    """
    span = busiest(folder, seconds)
    report = BenchReport(
        "scale", f"the busiest {seconds:g} s of the recorded job, repeated", f"the same at {min(ranks)} ranks"
    )
    sizes: list[JobSize] = []
    for count in sorted(ranks):
        with private_stack() as settings:
            changes = {"window_steps": 20, "app_id": f"{settings.stream.app_id}-{count}"}
            settings.stream = settings.stream.model_copy(update=changes)
            once = sizes[0].load.rows[Topic.KERNEL] / sizes[0].load.seconds / sizes[0].load.ranks if sizes else 10e3
            repetitions = max(1, round(kernels / (once * seconds * count)))
            sizes.append(measure(settings, folder, count, repetitions, span, progress))
        _add(report, sizes[0], sizes[-1])
    _compare_sizes(report, sizes)
    return report


def _add(report: BenchReport, first: JobSize, size: JobSize) -> None:
    name, load = f"{size.load.ranks:,} ranks", size.load
    rows = load.rows[Topic.KERNEL]
    report.add(f"{name}: CPU per million kernels", size.kernel_cpu_s, "s", first.kernel_cpu_s)
    report.add(f"{name}: the same, reference workloads", size.kernel_cost, "", first.kernel_cost)
    report.add(f"{name}: the job sends, kernels", rows / load.seconds, "kernels/s")
    report.add(f"{name}: the job sends, messages", load.messages.total() / load.seconds, "1/s")
    for stage, done in size.stages.items():
        report.add(f"{name}: {stage}, processed", done["records"] / done["wall_s"], "messages/s")
        report.add(f"{name}: {stage}, CPU for a second of the job", size.cpu_s(stage), "s")
    report.add(f"{name}: memory of a worker, most", size.memory / 2**20, "MiB", first.memory / 2**20)
    needed = workers(size.all_cpu_s, size.whole_cpu_s)
    text = "" if needed else f"no number suffices: {size.whole} alone needs {size.whole_cpu_s:.2f} s a second of one"
    report.add(f"{name}: workers", needed, "", text=text)


def _compare_sizes(report: BenchReport, sizes: Sequence[JobSize]) -> None:
    small = sizes[0].kernel_cost
    off = max(abs(size.kernel_cost / small - 1) for size in sizes)
    report.add("CPU per kernel, farthest from the smallest job's", off * 100, "%", target=WITHIN * 100, at_most=True)
    report.notes.append(
        "The last metric compares CPU in reference workloads, a fixed piece of work that each worker timed four times "
        "a second while it was measured: other programs' load changes from size to size. A reference workload took "
        + ", ".join(f"{float(s.stages['kernel-frequency']['reference_s']) * 1e3:.2f}" for s in sizes)
        + " ms."
    )
    bounds = "; ".join(f"{s.load.ranks:,} ranks: {s.whole_cpu_s:.3f} s of {s.all_cpu_s:.3f}" for s in sizes)
    report.notes.append(
        f"Workers = CPU of all stages for a second of the job / {BUSY:g} of a core, rounded up; there can be as many "
        "as partitions. The collectives of one communicator, and the steps of one job, stay on one worker however many "
        f"there are: where one of these needs more than {BUSY:g} s a second, no number suffices. The larger of "
        f"them: {bounds}."
    )
    report.notes.append("Published: " + "; ".join(_published(size.load) for size in sizes) + ".")


def _published(load: PeakLoad) -> str:
    return (
        f"{load.ranks:,} ranks, {load.seconds:g} s of job time, {load.rows[Topic.KERNEL]:,} kernels, "
        f"{load.messages.total():,} messages"
    )
