"""Measures the CPU of the pipeline at the speed of the recorded job, once it is warm, and without records."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

from drumline.infra.kafka.worker_status import read_statuses
from drumline.lab.bench.processes.process_watch import ProcessWatch
from drumline.lab.bench.processes.running_pipeline import RunningPipeline
from drumline.lab.bench.result import BenchReport, Progress
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.topics import Topic

#: CPU seconds of all programs for a million rows.
STEADY_CPU_S = 5.0


@dataclass(frozen=True)
class Course:
    """Length of the parts: repetitions of the recording before the measured ones, measured ones, and silence; s.

    In the warm-up code is imported and compiled, caches fill, and the first ranges are written. Before the measured
    silence, `settle_s` of silence close all windows and write the last checkpoint.
    """

    warm: int = 3
    loops: int = 9
    settle_s: float = 20.0
    silent_s: float = 60.0


def measure_recorded_speed(
    running: RunningPipeline, report: BenchReport, progress: Progress = lambda _: None, course: Course | None = None
) -> None:
    """Add the CPU of worker, sink, broker and engine for a million rows, and that of a second without records.

    The replay's CPU is none of it. Raises RuntimeError.
    """
    course = course or Course()
    recording = RecordedJob(running.folder)
    period_s, rows = recording.period_ns / 1e9, sum(n for t, n in recording.rows.items() if t is not Topic.PROCESS)
    del recording
    progress("at the recorded speed, warming up")
    options = ("--speed", "1", "--loop", str(course.warm + course.loops), "--job", "steady")
    with running.replay(*options) as replay:
        before = _handled(running)
        running.wait(lambda: _handled(running) > before, "nothing is replayed")
        began = time.monotonic()
        _sleep_until(began + course.warm * period_s)
        progress("at the recorded speed")
        loops = []
        for number in range(course.warm + 1, course.warm + course.loops + 1):
            with _cpu_watch(running) as watch:
                _sleep_until(began + number * period_s)
            loops.append(watch.cpu_s)
        replay.summary()
    running.wait(running.all_stored, "rows are missing")
    progress("without records")
    time.sleep(course.settle_s)
    with _cpu_watch(running) as silence:
        time.sleep(course.silent_s)
    _add(report, course, loops, rows / 1e6, silence.cpu_s)
    report.notes.append(
        f"Recorded speed: {rows / period_s:,.0f} rows/s. {course.warm} repetitions of {period_s:.0f} s warm the "
        f"programs up, {course.loops} are measured. As in production, bulk topics are written every "
        f"{running.settings.sink.bulk_flush_s:g} s, and windows have {running.settings.stream.window_steps} steps. "
        f"Silence: {course.silent_s:g} s in which nothing is published."
    )


def _add(
    report: BenchReport, course: Course, loops: list[dict[str, float]], millions: float, silence: dict[str, float]
) -> None:
    used: Counter[str] = Counter()
    for loop in loops:
        used.update(loop)
    for name in loops[0]:
        report.add(f"recorded speed, CPU per million rows: {name}", used[name] / len(loops) / millions, "s")
    report.add(
        "recorded speed, CPU per million rows: all",
        used.total() / len(loops) / millions,
        "s",
        target=STEADY_CPU_S,
        at_most=True,
    )
    of_loops = ", ".join(f"{sum(loop.values()) / millions:.3g}" for loop in loops)
    report.notes.append(f"CPU per million rows of all programs, of each measured repetition, s: {of_loops}.")
    for name, seconds in silence.items():
        report.add(f"silence, cores used by {name}", seconds / course.silent_s, "cores")
    report.add("silence, cores used by all", sum(silence.values()) / course.silent_s, "cores")


def _cpu_watch(running: RunningPipeline) -> ProcessWatch:
    """Return a watch that queries no offsets: the broker would work for it."""
    return ProcessWatch(running.pids, {}, every_s=5.0)


def _handled(running: RunningPipeline) -> int:
    return sum(status["handled"] for status in read_statuses(running.settings, 0).values())


def _sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - time.monotonic()))
