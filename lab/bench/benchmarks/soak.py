"""Runs the pipeline for an hour at half of its capacity and checks memory, lag and audit."""

from __future__ import annotations

import re
import time
from pathlib import Path

from drumline.infra.localstack.ephemeral import run_audit
from drumline.lab.bench.processes.ephemeral_stack import private_stack
from drumline.lab.bench.processes.process_watch import ProcessWatch
from drumline.lab.bench.processes.replay_process import ReplayProcess
from drumline.lab.bench.processes.running_pipeline import DRAIN_S, RunningPipeline
from drumline.lab.bench.processes.steady_state import EVERY_S, add_steady_state
from drumline.lab.bench.result import BenchReport, Progress
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.topics import Topic

#: Loops at full speed that measure the rate, and the share of it that the soak runs at.
PROBE_LOOPS, SHARE = 6, 0.5
#: Memory and lag are watched from then on: before, caches and heaps fill; s.
WARM_S = 300.0
#: Lines of the sink's log beside findings.
MOST_LINES = 10


def bench_soak(
    folder: Path, minutes: float = 60.0, rate: float | None = None, ranks: int = 16, progress: Progress = lambda _: None
) -> BenchReport:
    """Replay the recording as `ranks` ranks at the speed that gives `rate` kernels/s.

    `rate` defaults to half of what a probe at full speed reaches first. Raises RuntimeError.
    """
    recording = RecordedJob(folder, ranks=ranks, topics=[Topic.KERNEL])
    recorded = recording.rows[Topic.KERNEL] / ((recording.last_ns - recording.first_ns) / 1e9)
    del recording
    wanted = f"{rate:,.0f} kernels/s wanted" if rate else f"{SHARE:g} of the rate at full speed wanted"
    report = BenchReport("soak", f"the recorded job stretched to {ranks} ranks, {minutes:g} minutes, {wanted}", "none")
    progress("starting Kafka and ClickHouse")
    with private_stack() as settings:
        running = RunningPipeline(settings, folder)
        for program in running.programs.values():
            program.restarts = 0  # a program that exits ends the soak: no failure is hidden
        with running.started():
            if rate is None:
                progress("probe at full speed")
                full = _probe(running)
                report.add("kernels/s at full speed, probe", full, "kernels/s")
                rate = full * SHARE
            _soak(running, minutes * 60, rate / recorded, ranks, report, progress)
    return report


def _probe(running: RunningPipeline) -> float:
    """Return kernels/s from the first published to the last stored."""
    began = time.monotonic()
    with running.replay("--speed", "max", "--loop", str(PROBE_LOOPS), "--job", "probe") as replay:
        kernels = int(replay.summary()["rows"][Topic.KERNEL])
    stored = "SELECT count() AS n FROM kernels WHERE job = 'probe'"
    running.wait(lambda: running.lag() == 0 and running.query(stored)[0]["n"] == kernels, "rows are missing")
    return kernels / (time.monotonic() - began)


def _soak(
    running: RunningPipeline, seconds: float, speed: float, ranks: int, report: BenchReport, progress: Progress
) -> None:
    began = time.monotonic()
    warm_s = min(WARM_S, seconds / 4)
    options = ("--speed", repr(speed), "--ranks", str(ranks), "--loop", "100000", "--job", "soak")
    with running.replay(*options) as replay:

        def wait_until(end_s: float, watch: ProcessWatch | None = None) -> None:
            while (left := end_s - (time.monotonic() - began)) > 0:
                _alive(running, replay, watch)
                progress(
                    f"{(seconds - end_s + left) / 60:.0f} minutes left; the worker is {running.lag()} records behind"
                )
                time.sleep(min(5.0, left))

        wait_until(warm_s)
        with running.watch(EVERY_S, replay=replay.pid) as watch:
            wait_until(seconds, watch)
        replay.stop()
        summary = replay.summary()
    published_s = time.monotonic() - began
    kernels = int(summary["rows"][Topic.KERNEL])
    if not kernels:
        raise RuntimeError(f"no kernel was due in {published_s:.0f} s: a higher rate, or more minutes")
    progress("draining")
    _drain(running, report)
    stored = int(running.query("SELECT count() AS n FROM kernels WHERE job = 'soak'")[0]["n"])
    report.add("kernels published and not stored", kernels - stored, "", target=0, at_most=True)
    report.add("length", published_s / 60, "min")
    report.add("kernels", kernels / published_s, "kernels/s")
    report.add("rows in all, of the job", sum(summary["rows"].values()) / 1e6, "million")
    add_steady_state(report, watch, seconds - warm_s, sum(summary["batches"].values()) / published_s)
    progress("audit")
    _audit(running, report)


def _drain(running: RunningPipeline, report: BenchReport) -> None:
    began = time.monotonic()
    try:
        running.wait(running.all_stored, "not drained")
    except RuntimeError as error:  # the results of an hour are kept
        report.notes.append(f"{error}: lag of the worker {running.lag()}, of the sink {running.sink_lag()} records.")
    report.add("drained after the last record", time.monotonic() - began, "s", target=DRAIN_S, at_most=True)


def _audit(running: RunningPipeline, report: BenchReport) -> None:
    began = time.monotonic()
    audit = run_audit(running.env)
    report.add("audit findings", len(audit["findings"]), "", target=0, at_most=True)
    report.notes += [f"Audit: {finding['kind']} {finding['where']}: {finding['text']}" for finding in audit["findings"]]
    if audit["findings"]:  # the logs go with the stack
        report.notes += [f"The sink's log: {line}" for line in _problems(running.programs["sink"].log)]
    records, rows = (sum(topic[name] for topic in audit["topics"]) for name in ("records", "rows_stored"))
    report.notes.append(f"The audit took {time.monotonic() - began:.0f} s: {records:,} records, {rows:,} rows stored.")


def _problems(log: Path) -> list[str]:
    """Return the last lines of a log that are warnings or errors."""
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if re.search(r"\[(warning|error) ", line)][-MOST_LINES:]


def _alive(running: RunningPipeline, replay: ReplayProcess, watch: ProcessWatch | None) -> None:
    for program in running.programs.values():
        program.check()
    if not replay.is_running():
        raise RuntimeError("drumline replay ended before its time")
    if watch is not None:
        watch.check()
