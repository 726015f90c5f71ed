"""`drumline bench overhead`: what recording costs the job, on this machine's GPU.

Every mode runs in processes of its own, in turn, over several rounds, so that clocks and temperature are the same for
all; on several GPUs side by side, each with its share of the cores. Figures are over the steps of all rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from drumline.infra.bench.overhead.job import MODES, WORKLOADS
from drumline.infra.bench.overhead.paired import differences, drawn, interval, middle
from drumline.infra.bench.result import Report, machine
from drumline.producers.launcher import environment

#: How long a process may take beyond its measuring; s.
PATIENCE_S = 120
#: workload -> (mode -> the most that its median may be above the base, base).
BARS = {
    ("gpu_bound", "drumline"): (1.01, "plain"),
    ("gpu_bound", "duty"): (1.01, "plain"),
    ("launch_bound", "duty"): (1.01, "plain"),
}
NO_GPU = "no GPU"
NOTES = [
    "Wait for the GIL: a thread of the job sleeps for 1 ms again and again; how much later than that it runs. "
    "Measured for 1 s after the steps were timed. The timer's own lateness and what the training loop holds are in it.",
    "With the GIL, at most: CPU of drumline's thread outside of CUPTI's flushes. Nothing else of drumline runs "
    "Python in the job unless its API is called; callbacks are C and never take the lock.",
]
#: Modes that `drumline run` would start.
RECORDED = ("drumline", "paired", "duty")
Rounds = dict[str, list[dict[str, Any]]]


def run_once(
    mode: str, seconds: float, workloads: Sequence[str], spool: Path, lane: int = 0, lanes: int = 1
) -> dict[str, Any]:
    """One process, on GPU `lane`. Raises RuntimeError with the end of its stderr."""
    command = [sys.executable, "-m", "drumline.infra.bench.overhead.job", mode, str(seconds), *workloads]
    # A hash seed of its own would give each process other dictionaries, and another speed.
    variables = {**os.environ, "PYTHONHASHSEED": "0"}
    if lanes > 1:
        variables["CUDA_VISIBLE_DEVICES"] = str(lane)
        cores = sorted(os.sched_getaffinity(0))
        mine = cores[lane * len(cores) // lanes : (lane + 1) * len(cores) // lanes]
        command = ["taskset", "-c", ",".join(map(str, mine)), *command]
    if mode in RECORDED:
        policy = "duty" if mode == "duty" else "always"
        variables = environment(variables, command, job="overhead", policy=policy, spool=str(spool))
    done = subprocess.run(
        command,
        env=variables,
        capture_output=True,
        text=True,
        timeout=seconds * len(workloads) + PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{mode}: exit {done.returncode}: {done.stderr.strip()[-800:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(
    rounds: int,
    seconds: float,
    modes: Sequence[str],
    workloads: Sequence[str],
    progress: Callable[[str], None],
    lanes: int = 1,
) -> Rounds:
    """`rounds` processes of each mode on each of `lanes` GPUs, in turn, the first mode another one each time."""
    found: Rounds = {mode: [] for mode in modes}

    def rounds_of(lane: int, folder: Path) -> None:
        for number in range(rounds):
            first = (number + lane) % len(modes)
            for mode in (*modes[first:], *modes[:first]):
                progress(f"GPU {lane}, round {number + 1} of {rounds}: {mode}")
                found[mode].append(run_once(mode, seconds, workloads, folder, lane, lanes))

    with tempfile.TemporaryDirectory(prefix="drumline-overhead-") as folder, ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(rounds_of, lane, Path(folder)) for lane in range(lanes)]:
            done.result()
    return found


def steps(found: Rounds, mode: str, workload: str) -> list[float]:
    """All step times; ms."""
    return [ms for one in found[mode] for ms in one["workloads"][workload]["ms"]]


def waits(found: Rounds, mode: str, workload: str) -> list[float]:
    """How much too late a thread got Python's lock, each time; ms."""
    return [ms for one in found[mode] for ms in one["workloads"][workload]["lock_ms"]]


def report(found: Rounds, workloads: Sequence[str]) -> Report:
    """Median, p99 and throughput of every workload under every mode, beside plain."""
    result = Report("overhead", "steps on " + gpu(), "the same steps, nothing attached (plain)")
    for workload in workloads:
        plain = steps(found, "plain", workload)
        for mode in found:
            if mode == "paired":
                continue
            took = steps(found, mode, workload)
            limit, base = BARS.get((workload, mode), (None, "plain"))
            bar = {"bar": limit * float(np.median(steps(found, base, workload))), "most": True} if limit else {}
            name = f"{workload}, {mode}"
            result.add(f"{name}: median step", float(np.median(took)), "ms", float(np.median(plain)), **bar)
            result.add(f"{name}: p99", float(np.percentile(took, 99)), "ms", float(np.percentile(plain, 99)))
            result.add(f"{name}: longest", max(took), "ms", max(plain))
            result.add(f"{name}: steps per second", 1e3 / float(np.mean(took)), "1/s", 1e3 / float(np.mean(plain)))
            for text, of in (("mean", np.mean), ("p99", partial(np.percentile, q=99))):
                wait, usual = (float(of(waits(found, one, workload))) for one in (mode, "plain"))
                result.add(f"{name}: wait for the GIL, {text}", wait, "ms", usual)
            cpu, usual = (float(np.mean([r["workloads"][workload]["cpu"] for r in found[m]])) for m in (mode, "plain"))
            result.add(f"{name}: CPU of the job", cpu, "cores", usual)
        if "cupti" in found and "drumline" in found:
            alone, ours = (float(np.median(steps(found, mode, workload))) for mode in ("cupti", "drumline"))
            points = 100 * (ours - alone) / float(np.median(plain))
            result.add(f"{workload}: drumline above CUPTI alone", points, "points", bar=1.0, most=True)
            _between(result, found, workload, float(np.median(plain)))
            late = [float(np.percentile(steps(found, mode, workload), 99)) for mode in ("cupti", "drumline")]
            result.add(f"{workload}: p99 above CUPTI alone", 100 * (late[1] / late[0] - 1), "%", bar=5.0, most=True)
        if "paired" in found:
            _within(result, found, workload, float(np.median(plain)))
        _memory(result, found, workload)
    for mode in sorted(set(found) & {"drumline", "duty"}):
        wall = sum(one["seconds"] for one in found[mode])
        for key, text in (
            ("thread_s", "collector's thread in the job"),
            ("locked_s", "collector's thread in the job with the GIL, at most"),
            ("callback_s", "callbacks in the job"),
            ("decoder_cpu_s", "decoder"),
        ):
            result.add(f"{mode}: CPU of the {text}", 1e3 * sum(one[key] for one in found[mode]) / wall, "ms/s")
        result.add(f"{mode}: longest callback", max(one["callback_max_us"] for one in found[mode]), "us")
        result.add(f"{mode}: memory of the decoder", max(one["decoder_mb"] for one in found[mode]), "MB")
        result.add(f"{mode}: records dropped", sum(one["dropped"] for one in found[mode]), "records")
    result.machine = machine() | found["plain"][0].get("versions", {})
    result.notes += NOTES
    return result


def _memory(result: Report, found: Rounds, workload: str) -> None:
    """The largest process of each mode beside the smallest plain one."""
    peaks = {mode: [one["workloads"][workload]["peak_mb"] for one in found[mode]] for mode in found}
    plain = min(peaks["plain"])
    result.add(f"{workload}, plain: peak memory of the job", plain, "MB")
    for mode in sorted(set(found) - {"plain"}):
        bar = {"bar": 150.0, "most": True} if mode in ("drumline", "duty", "paired") else {}
        result.add(f"{workload}, {mode}: memory of the job above plain", max(peaks[mode]) - plain, "MB", **bar)


def _between(result: Report, found: Rounds, workload: str, plain: float) -> None:
    """How sure the comparison of processes is: their medians, drawn anew; points of the plain median."""
    alone, ours = (
        np.array([np.median(one["workloads"][workload]["ms"]) for one in found[mode]]) for mode in ("cupti", "drumline")
    )
    if len(ours) < 2:
        return
    low, high = interval(
        lambda random: float(np.mean(random.choice(ours, len(ours))) - np.mean(random.choice(alone, len(alone))))
    )
    _bounds(result, f"{workload}: drumline above CUPTI alone, {len(ours)} processes", low, high, plain)


def _within(result: Report, found: Rounds, workload: str, plain: float) -> None:
    """Blocks of the same process, paired.py; points of the plain median, as shares of CUPTI alone are scaled to it."""
    runs = [one["workloads"][workload] for one in found["paired"]]
    pairs = [differences(run) for run in runs]
    alone_ms = float(np.median([ms for run in runs for block in run["alone"] for ms in block]))
    count = sum(len(pair) for pair in pairs)
    name = f"{workload}: drumline above CUPTI alone, paired, {count} pairs of {len(runs)} processes"
    result.add(name, 100 * middle(pairs) * alone_ms / plain, "points", bar=1.0, most=True)
    low, high = interval(partial(drawn, pairs))
    _bounds(result, name, low * alone_ms, high * alone_ms, plain)
    alone, ours = (
        float(np.percentile([ms for run in runs for block in run[key] for ms in block], 99))
        for key in ("alone", "ours")
    )
    result.add(f"{workload}: p99 above CUPTI alone, paired", 100 * (ours / alone - 1), "%", bar=5.0, most=True)


def _bounds(result: Report, name: str, low: float, high: float, plain: float) -> None:
    for text, value in (("from", low), ("to", high)):
        result.add(f"{name}, 95% interval {text}", 100 * value / plain, "points")


def gpu() -> str:
    """Model and driver, as nvidia-smi says."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return NO_GPU


def bench_overhead(
    rounds: int,
    seconds: float,
    modes: Sequence[str],
    workloads: Sequence[str],
    progress: Callable[[str], None],
    lanes: int = 1,
) -> Report:
    """`lanes`: GPUs used side by side. Raises ValueError for unknown names and where there is no GPU, RuntimeError when
    a process fails."""
    for name, known in ((modes, MODES), (workloads, WORKLOADS)):
        if strange := set(name) - set(known):
            raise ValueError(f"{', '.join(sorted(strange))}: known are {', '.join(known)}")
    if gpu() == NO_GPU:
        raise ValueError("no NVIDIA GPU here: nvidia-smi does not answer")
    chosen = ["plain", *(mode for mode in modes if mode != "plain")]
    return report(measure(rounds, seconds, chosen, workloads, progress, lanes), workloads)
