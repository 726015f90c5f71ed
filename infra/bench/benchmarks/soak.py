"""The pipeline for an hour at half of what it can do: does memory stay flat and lag bounded, is the audit clean?"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from drumline.infra.bench.processes.ephemeral_stack import private_stack
from drumline.infra.bench.processes.process_watch import Watch
from drumline.infra.bench.processes.replay_process import Replay
from drumline.infra.bench.processes.running_pipeline import DRAIN_S, Running
from drumline.infra.bench.processes.steady_state import EVERY_S, watched
from drumline.infra.bench.result import Report
from drumline.infra.localstack.ephemeral import run_audit
from drumline.producers.replay.recording import Recording
from drumline.schemas.topics import Topic

#: Loops at full speed that tell the rate, and the share of it that the soak runs at.
PROBE_LOOPS, SHARE = 6, 0.5
#: Memory and lag are watched from here on: before, caches and heaps fill; s.
WARM_S = 300.0
Progress = Callable[[str], None]


def bench_soak(
    folder: Path, minutes: float = 60.0, rate: float | None = None, ranks: int = 16, progress: Progress = lambda _: None
) -> Report:
    """`rate`: kernels/s, default half of what a probe at full speed reaches first. `ranks`: the recording's job is
    stretched to so many and replayed at the speed that gives the rate. Raises RuntimeError."""
    recording = Recording(folder, ranks=ranks, topics=[Topic.KERNEL])
    recorded = recording.rows[Topic.KERNEL] / ((recording.last_ns - recording.first_ns) / 1e9)
    del recording
    wanted = f"{rate:,.0f} kernels/s wanted" if rate else f"{SHARE:g} of the rate at full speed wanted"
    report = Report("soak", f"the recorded job stretched to {ranks} ranks, {minutes:g} minutes, {wanted}", "none")
    progress("starting Kafka and ClickHouse")
    with private_stack() as settings:
        running = Running(settings, folder)
        for program in running.programs.values():
            program.restarts = 0  # a program that dies ends the soak: nothing is hidden
        with running.started():
            if rate is None:
                progress("probe at full speed")
                full = _probe(running)
                report.add("kernels/s at full speed, probe", full, "kernels/s")
                rate = full * SHARE
            _soak(running, minutes * 60, rate / recorded, ranks, report, progress)
    return report


def _probe(running: Running) -> float:
    """Kernels/s, first published to last stored."""
    began = time.monotonic()
    with running.replay("--speed", "max", "--loop", str(PROBE_LOOPS), "--job", "probe") as replay:
        kernels = int(replay.summary()["rows"][Topic.KERNEL])
    stored = "SELECT count() AS n FROM kernels WHERE job = 'probe'"
    running.wait(lambda: running.lag() == 0 and running.query(stored)[0]["n"] == kernels, "rows are missing")
    return kernels / (time.monotonic() - began)


def _soak(running: Running, seconds: float, speed: float, ranks: int, report: Report, progress: Progress) -> None:
    began = time.monotonic()
    warm_s = min(WARM_S, seconds / 4)
    options = ("--speed", repr(speed), "--ranks", str(ranks), "--loop", "100000", "--job", "soak")
    with running.replay(*options) as replay:

        def wait_until(end_s: float, watch: Watch | None = None) -> None:
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
    report.add("kernels published and not stored", kernels - stored, "", bar=0, most=True)
    report.add("length", published_s / 60, "min")
    report.add("kernels", kernels / published_s, "kernels/s")
    report.add("rows in all, of the job", sum(summary["rows"].values()) / 1e6, "million")
    watched(report, watch, seconds - warm_s, sum(summary["batches"].values()) / published_s)
    progress("audit")
    _audit(running, report)


def _drain(running: Running, report: Report) -> None:
    began = time.monotonic()
    try:
        running.wait(running.all_stored, "not drained")
    except RuntimeError as error:  # an hour's figures are not thrown away for it
        report.notes.append(f"{error}: lag of the worker {running.lag()}, of the sink {running.sink_lag()} records.")
    report.add("drained after the last record", time.monotonic() - began, "s", bar=DRAIN_S, most=True)


def _audit(running: Running, report: Report) -> None:
    began = time.monotonic()
    found = run_audit(running.env)
    report.add("audit findings", len(found["findings"]), "", bar=0, most=True)
    report.notes += [f"Audit: {finding['kind']} {finding['where']}: {finding['text']}" for finding in found["findings"]]
    records, rows = (sum(topic[name] for topic in found["topics"]) for name in ("records", "rows_stored"))
    report.notes.append(f"The audit took {time.monotonic() - began:.0f} s: {records:,} records, {rows:,} rows stored.")


def _alive(running: Running, replay: Replay, watch: Watch | None) -> None:
    for program in running.programs.values():
        program.check()
    if not replay.runs():
        raise RuntimeError("drumline replay ended before its time")
    if watch is not None:
        watch.check()
