"""The pipeline for an hour at half of what it can do: does memory stay flat and lag bounded, is the audit clean?"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from drumline.bench.figures import Report, percentiles
from drumline.bench.pipeline import MEMORY_MIB
from drumline.bench.private import private_stack
from drumline.bench.running import Running
from drumline.bench.watch import Watch, over_time
from drumline.producers.recorded import Recording
from drumline.schemas.topics import Topic

#: Loops at full speed that tell the rate, and the share of it that the soak runs at.
PROBE_LOOPS, SHARE = 6, 0.5
#: Memory and lag are watched from here on: before, caches and heaps fill; s.
WARM_S = 300.0
#: How often they are looked at; s.
EVERY_S = 5.0
Progress = Callable[[str], None]


def slope_mib_per_hour(values: Sequence[float], every_s: float) -> float:
    """Least-squares slope of resident bytes sampled every `every_s`; MiB per hour. 0 for fewer than three."""
    if len(values) < 3:
        return 0.0
    hours = np.arange(len(values)) * every_s / 3600
    return float(np.polyfit(hours, np.asarray(values) / 2**20, 1)[0])


def bench_soak(
    folder: Path, minutes: float = 60.0, rate: float | None = None, ranks: int = 16, progress: Progress = lambda _: None
) -> Report:
    """`rate`: kernels/s, default half of what a probe at full speed reaches first. `ranks`: the recording's job is
    stretched to so many and replayed at the speed that gives the rate. Raises RuntimeError."""
    recording = Recording(folder, ranks=ranks, topics=[Topic.KERNEL])
    recorded = recording.rows[Topic.KERNEL] / ((recording.last_ns - recording.first_ns) / 1e9)
    del recording
    report = Report("soak", f"the recorded job stretched to {ranks} ranks", "none")
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
    with running.replay("--speed", "max", "--loop", str(PROBE_LOOPS), "--job", "probe") as process:
        output, _ = process.communicate()
    kernels = int(json.loads(output)["rows"][Topic.KERNEL])
    stored = "SELECT count() AS n FROM kernels WHERE job = 'probe'"
    running.wait(lambda: running.lag() == 0 and running.query(stored)[0]["n"] == kernels, "rows are missing")
    return kernels / (time.monotonic() - began)


def _soak(running: Running, seconds: float, speed: float, ranks: int, report: Report, progress: Progress) -> None:
    began = time.monotonic()
    warm_s = min(WARM_S, seconds / 4)
    options = ("--speed", f"{speed:.4f}", "--ranks", str(ranks), "--loop", "100000", "--job", "soak")
    with running.replay(*options) as replay:

        def wait_until(end_s: float) -> None:
            while (left := end_s - (time.monotonic() - began)) > 0:
                _alive(running, replay)
                progress(
                    f"{(seconds - end_s + left) / 60:.0f} minutes left; the worker is {running.lag()} records behind"
                )
                time.sleep(min(5.0, left))

        wait_until(warm_s)
        with running.watch(EVERY_S, replay=replay.pid) as watch:
            wait_until(seconds)
        replay.terminate()
        output, _ = replay.communicate(timeout=120)
    published_s = time.monotonic() - began
    summary = json.loads(output)
    kernels = int(summary["rows"][Topic.KERNEL])
    progress("draining")
    try:
        running.wait(running.all_stored, "not worked off")
    except RuntimeError as error:  # an hour's figures are not thrown away for it
        report.notes.append(f"{error}: lag of the worker {running.lag()}, of the sink {running.sink_lag()} records.")
    stored = int(running.query("SELECT count() AS n FROM kernels WHERE job = 'soak'")[0]["n"])
    report.add("kernels published and not stored", kernels - stored, "", bar=0, most=True)
    report.add("length", published_s / 60, "min")
    report.add("kernels", kernels / published_s, "kernels/s")
    report.add("rows in all, of the job", sum(summary["rows"].values()) / 1e6, "million")
    _memory(report, watch, seconds - warm_s)
    for name, values in watch.lag.items():
        for what, value in {"most": max(values, default=0), **percentiles(values)}.items():
            report.add(f"lag of {name}, {what}", value, "records")
        report.notes.append(f"Lag of {name}, mean of each tenth, records: {over_time(values)}.")
    progress("audit")
    _audit(running, report)


def _memory(report: Report, watch: Watch, seconds: float) -> None:
    for name, values in watch.memory.items():
        bar = {"bar": MEMORY_MIB, "most": True} if name in ("stream", "sink") else {}
        report.add(f"memory of {name}, most", max(values) / 2**20, "MiB", **bar)
        report.add(f"memory of {name}, slope", slope_mib_per_hour(values, EVERY_S), "MiB/h")
        report.notes.append(f"Memory of {name}, mean of each tenth, MiB: {over_time(values, 2**20)}.")
    for name, used in watch.cpu_s.items():
        report.add(f"cores used by {name}", used / seconds, "cores")


def _audit(running: Running, report: Report) -> None:
    began = time.monotonic()
    found = running.audit()
    report.add("audit findings", len(found["findings"]), "", bar=0, most=True)
    report.notes += [f"Audit: {finding['kind']} {finding['where']}: {finding['text']}" for finding in found["findings"]]
    records, rows = (sum(topic[name] for topic in found["topics"]) for name in ("records", "rows_stored"))
    report.notes.append(f"The audit took {time.monotonic() - began:.0f} s: {records:,} records, {rows:,} rows stored.")


def _alive(running: Running, replay: subprocess.Popen[str]) -> None:
    for program in running.programs.values():
        program.check()
    if replay.poll() is not None:
        raise RuntimeError(f"drumline replay ended with {replay.returncode}")
