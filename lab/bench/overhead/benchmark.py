"""`drumline bench overhead`: the cost of recording in the training process, on this machine's GPU.

Each mode runs in processes of its own, interleaved over several rounds, so that clocks and temperature are the same for
all. Several GPUs work side by side, each with its share of the cores. Results cover the steps of all rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drumline.lab.bench.overhead import ddp
from drumline.lab.bench.overhead.ddp_job import POLICIES
from drumline.lab.bench.overhead.job import MODES, WORKLOADS
from drumline.lab.bench.overhead.paired import differences, interval, median_of_pairs, resampled_median
from drumline.lab.bench.overhead.ratios import add_ddp
from drumline.lab.bench.result import BenchReport, Progress, machine
from drumline.producers.launcher import LaunchOptions, environment
from drumline.producers.spool.location import make_rings

#: Time that a process may take beyond its measurements; s.
EXTRA_S = 120
#: (workload, mode) -> (largest ratio of the medians of the mode and its base, base).
TARGETS = {("gpu_bound", "drumline"): (1.01, "plain")}
NO_GPU = "no GPU"
NOTES = [
    "Wait for the GIL: a thread of the job sleeps for 1 ms again and again; how much later than that it runs. "
    "Measured for 1 s after the steps were timed. The timer's own lateness and what the training loop holds are in it.",
    "With the GIL, at most: CPU of drumline's thread outside of CUPTI's flushes. Nothing else of drumline runs "
    "Python in the job unless its API is called; callbacks are C and never take the lock.",
]
#: Modes that `drumline run` would start.
RECORDED = (*POLICIES, "paired")
#: Mode -> the JSON objects that its processes printed (overhead/job.py).
Runs = dict[str, list[dict[str, Any]]]


def run_once(
    mode: str, seconds: float, workloads: Sequence[str], spool: Path, lane: int = 0, lanes: int = 1
) -> dict[str, Any]:
    """Run one process on GPU `lane`. Raises RuntimeError with the end of its stderr."""
    command = [sys.executable, "-m", "drumline.lab.bench.overhead.job", mode, str(seconds), *workloads]
    # A hash seed of its own would give each process other dictionaries, and another speed.
    variables = {**os.environ, "PYTHONHASHSEED": "0"}
    if lanes > 1:
        variables["CUDA_VISIBLE_DEVICES"] = str(lane)
        cores = sorted(os.sched_getaffinity(0))
        lane_cores = cores[lane * len(cores) // lanes : (lane + 1) * len(cores) // lanes]
        command = ["taskset", "-c", ",".join(map(str, lane_cores)), *command]
    if mode in RECORDED:
        policy = POLICIES.get(mode, "always")
        variables = environment(variables, command, LaunchOptions(job="overhead", policy=policy, spool=str(spool)))
        make_rings(variables)
    done = subprocess.run(
        command,
        env=variables,
        capture_output=True,
        text=True,
        timeout=seconds * len(workloads) + EXTRA_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{mode}: exit {done.returncode}: {done.stderr.strip()[-800:]}")
    run: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return run


def measure(
    rounds: int, seconds: float, modes: Sequence[str], workloads: Sequence[str], progress: Progress, lanes: int = 1
) -> Runs:
    """Run `rounds` processes of each mode on each of `lanes` GPUs, interleaved; each round begins with another mode."""
    runs: Runs = {mode: [] for mode in modes}

    def run_lane(lane: int, folder: Path) -> None:
        for number in range(rounds):
            first = (number + lane) % len(modes)
            for mode in (*modes[first:], *modes[:first]):
                progress(f"GPU {lane}, round {number + 1} of {rounds}: {mode}")
                runs[mode].append(run_once(mode, seconds, workloads, folder, lane, lanes))

    with tempfile.TemporaryDirectory(prefix="drumline-overhead-") as folder, ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(run_lane, lane, Path(folder)) for lane in range(lanes)]:
            done.result()
    return runs


def step_times(runs: Runs, mode: str, workload: str) -> list[float]:
    """Return all step times; ms."""
    return [ms for run in runs[mode] for ms in run["workloads"][workload]["ms"]]


def gil_delays(runs: Runs, mode: str, workload: str) -> list[float]:
    """Return all delays with which the probe's thread got the GIL; ms."""
    return [ms for run in runs[mode] for ms in run["workloads"][workload]["gil_ms"]]


def build_report(runs: Runs, workloads: Sequence[str]) -> BenchReport:
    """Return median, p99 and throughput of every workload under every mode, beside plain."""
    report = BenchReport("overhead", "steps on " + gpu(), "the same steps, nothing attached (plain)")
    for workload in workloads:
        plain_ms = float(np.median(step_times(runs, "plain", workload)))
        for mode in runs:
            if mode != "paired":
                _add_mode(report, runs, workload, mode)
        if "cupti" in runs and "drumline" in runs:
            _add_above_cupti(report, runs, workload, plain_ms)
        if "paired" in runs:
            _add_paired(report, runs, workload, plain_ms)
        _add_memory(report, runs, workload)
    if "drumline" in runs:
        _add_own_cost(report, runs["drumline"], "drumline")
    report.machine = machine() | runs["plain"][0].get("versions", {})
    report.notes += NOTES
    return report


def _add_mode(report: BenchReport, runs: Runs, workload: str, mode: str) -> None:
    took, plain = (step_times(runs, name, workload) for name in (mode, "plain"))
    target: dict[str, Any] = {}
    if (workload, mode) in TARGETS:
        limit, base = TARGETS[workload, mode]
        target = {"target": limit * float(np.median(step_times(runs, base, workload))), "at_most": True}
    name = f"{workload}, {mode}"
    report.add(f"{name}: median step", float(np.median(took)), "ms", float(np.median(plain)), **target)
    report.add(f"{name}: p99", float(np.percentile(took, 99)), "ms", float(np.percentile(plain, 99)))
    report.add(f"{name}: longest", max(took), "ms", max(plain))
    report.add(f"{name}: steps per second", 1e3 / float(np.mean(took)), "1/s", 1e3 / float(np.mean(plain)))
    for text, statistic in (("mean", np.mean), ("p99", partial(np.percentile, q=99))):
        delay, plain_delay = (float(statistic(gil_delays(runs, known, workload))) for known in (mode, "plain"))
        report.add(f"{name}: wait for the GIL, {text}", delay, "ms", plain_delay)
    cpu, plain_cpu = (
        float(np.mean([run["workloads"][workload]["cpu"] for run in runs[known]])) for known in (mode, "plain")
    )
    report.add(f"{name}: CPU of the job", cpu, "cores", plain_cpu)


def _add_above_cupti(report: BenchReport, runs: Runs, workload: str, plain_ms: float) -> None:
    """Add drumline beside CUPTI alone, process against process; points of the plain median."""
    cupti, drumline = (step_times(runs, mode, workload) for mode in ("cupti", "drumline"))
    points = 100 * (float(np.median(drumline)) - float(np.median(cupti))) / plain_ms
    report.add(f"{workload}: drumline above CUPTI alone", points, "points", target=1.0, at_most=True)
    _add_interval_of_processes(report, runs, workload, plain_ms)
    above = 100 * (float(np.percentile(drumline, 99)) / float(np.percentile(cupti, 99)) - 1)
    report.add(f"{workload}: p99 above CUPTI alone", above, "%", target=5.0, at_most=True)


def _add_interval_of_processes(report: BenchReport, runs: Runs, workload: str, plain_ms: float) -> None:
    """Add the confidence interval over the medians of processes, resampled."""
    cupti, drumline = (
        np.array([np.median(run["workloads"][workload]["ms"]) for run in runs[mode]]) for mode in ("cupti", "drumline")
    )
    if len(drumline) < 2:
        return

    def draw(random: np.random.Generator) -> float:
        return float(np.mean(random.choice(drumline, len(drumline))) - np.mean(random.choice(cupti, len(cupti))))

    low, high = interval(draw)
    _add_bounds(report, f"{workload}: drumline above CUPTI alone, {len(drumline)} processes", low, high, plain_ms)


def _add_paired(report: BenchReport, runs: Runs, workload: str, plain_ms: float) -> None:
    """Add drumline beside CUPTI alone, in blocks of one process (paired.py); points of the plain median."""
    blocks = [run["workloads"][workload] for run in runs["paired"]]
    pairs = [differences(run) for run in blocks]
    cupti_ms = float(np.median([ms for run in blocks for block in run["cupti"] for ms in block]))
    count = sum(len(pair) for pair in pairs)
    name = f"{workload}: drumline above CUPTI alone, paired, {count} pairs of {len(blocks)} processes"
    report.add(name, 100 * median_of_pairs(pairs) * cupti_ms / plain_ms, "points", target=1.0, at_most=True)
    low, high = interval(partial(resampled_median, pairs))
    _add_bounds(report, name, low * cupti_ms, high * cupti_ms, plain_ms)
    cupti_p99, drumline_p99 = (
        float(np.percentile([ms for run in blocks for block in run[key] for ms in block], 99))
        for key in ("cupti", "drumline")
    )
    above = 100 * (drumline_p99 / cupti_p99 - 1)
    report.add(f"{workload}: p99 above CUPTI alone, paired", above, "%", target=5.0, at_most=True)


def _add_memory(report: BenchReport, runs: Runs, workload: str) -> None:
    """Add the largest process of each mode beside the smallest plain one."""
    peaks = {mode: [run["workloads"][workload]["peak_mb"] for run in runs[mode]] for mode in runs}
    plain = min(peaks["plain"])
    report.add(f"{workload}, plain: peak memory of the job", plain, "MB")
    for mode in sorted(set(runs) - {"plain"}):
        target = {"target": 150.0, "at_most": True} if mode in RECORDED else {}
        report.add(f"{workload}, {mode}: memory of the job above plain", max(peaks[mode]) - plain, "MB", **target)


def _add_own_cost(report: BenchReport, runs: list[dict[str, Any]], mode: str) -> None:
    wall = sum(run["seconds"] for run in runs)
    for key, text in (
        ("thread_s", "collector's thread in the job"),
        ("locked_s", "collector's thread in the job with the GIL, at most"),
        ("callback_s", "callbacks in the job"),
        ("decoder_cpu_s", "decoder"),
    ):
        report.add(f"{mode}: CPU of the {text}", 1e3 * sum(run[key] for run in runs) / wall, "ms/s")
    report.add(f"{mode}: longest callback", max(run["callback_max_us"] for run in runs), "us")
    report.add(f"{mode}: memory of the decoder", max(run["decoder_mb"] for run in runs), "MB")
    report.add(f"{mode}: records dropped", sum(run["dropped"] for run in runs), "records")


def _add_bounds(report: BenchReport, name: str, low: float, high: float, plain_ms: float) -> None:
    for text, value in (("from", low), ("to", high)):
        report.add(f"{name}, 95% interval {text}", 100 * value / plain_ms, "points")


def gpu() -> str:
    """Return model and driver as nvidia-smi reports them, or NO_GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return NO_GPU


def bench_overhead(
    rounds: int, seconds: float, modes: Sequence[str], workloads: Sequence[str], progress: Progress, lanes: int = 1
) -> BenchReport:
    """Measure all modes over all workloads on `lanes` GPUs side by side.

    Raises: ValueError for unknown names and without a GPU, RuntimeError when a process fails.
    """
    chosen = ["plain", *(mode for mode in modes if mode != "plain")]
    with_ranks = [name for name in workloads if name in ddp.WORKLOADS]
    single_gpu = [name for name in workloads if name not in ddp.WORKLOADS]
    for names, known in (
        (single_gpu, [*WORKLOADS, *ddp.WORKLOADS]),
        (chosen, MODES if single_gpu else ddp.MODES),
        (chosen, ddp.MODES if with_ranks else MODES),
    ):
        if unknown := set(names) - set(known):
            raise ValueError(f"{', '.join(sorted(unknown))}: known are {', '.join(known)}")
    if gpu() == NO_GPU:
        raise ValueError("no NVIDIA GPU: nvidia-smi does not answer")
    if not single_gpu:
        report = BenchReport("overhead", "steps on " + gpu(), "the same steps, nothing attached (plain)")
    else:
        report = build_report(measure(rounds, seconds, chosen, single_gpu, progress, lanes), single_gpu)
    if with_ranks:
        with tempfile.TemporaryDirectory(prefix="drumline-overhead-") as folder:
            measured, versions = ddp.measure_ddp(rounds, seconds, chosen, with_ranks, Path(folder), progress)
        add_ddp(report, measured)
        report.machine = machine() | report.machine | versions
    return report
