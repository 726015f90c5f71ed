"""DDP workloads of `drumline bench overhead`: two ranks on two GPUs, with NCCL, under each mode in turn.

Processes of one mode differ from each other by more than what is measured. So a round starts the ranks of all modes
anew, on the same cores (two sets, one a rank), and then lets one mode after the other run for a moment while the rest
wait. What counts is the ratio of a mode to plain within its round; the interval is over rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import NormalDist, mean, stdev
from typing import Any

from drumline.infra.bench.overhead.ddp_job import MODES, POLICIES, WORKLOADS
from drumline.infra.bench.result import BenchReport, Progress
from drumline.producers.launcher import LaunchOptions, environment
from drumline.producers.spool.location import make_rings

RANKS = 2
#: Blocks of each mode in a round; every second one is in the opposite order.
BLOCKS = 8
#: Steps by which the length of a block is estimated.
ESTIMATED = 5
#: Longest time until a process is ready, and of a block beyond its own length; s.
START_S, EXTRA_S = 120, 60
#: (workload, mode) -> largest ratio to plain.
TARGETS = {("ddp_launch_bound", "light"): 1.01, ("ddp_gpu_bound", "light"): 1.003}
#: Workload -> mode -> a dictionary of values for each round: ms, cpu_ms, records.
Rounds = dict[str, dict[str, list[dict[str, float]]]]


class Ranks:
    """The processes of one mode in one round. `close` ends them; a process that does not answer is killed."""

    def __init__(self, mode: str, workloads: Sequence[str], spool: Path) -> None:
        self.mode = mode
        command = [sys.executable, "-m", "drumline.infra.bench.overhead.ddp_job", mode, *workloads]
        if mode == "gpufl":
            command = ["gpufl", "trace", "--", *command]
        variables = {**os.environ, "PYTHONHASHSEED": "0", "WORLD_SIZE": str(RANKS)}
        variables["STORE_FILE"] = str(
            spool / f"store-{mode}-{time.monotonic_ns()}"
        )  # a port may be another's by the time it is used
        cores = sorted(os.sched_getaffinity(0))
        shares = [cores[rank * len(cores) // RANKS :][: max(1, len(cores) // RANKS)] for rank in range(RANKS)]
        if mode in POLICIES:
            options = LaunchOptions(job="overhead", run="r", policy=POLICIES[mode], spool=str(spool))
            variables = environment(variables, command, options)
            make_rings(variables)
        self._errors = [open(spool / f"{mode}-{rank}.err", "w+") for rank in range(RANKS)]  # noqa: SIM115
        self._processes = [
            subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, shares[rank])), *command],
                env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors[rank],
                text=True,
                cwd=spool,
            )
            for rank in range(RANKS)
        ]

    def answers(self, seconds: float) -> list[dict[str, Any]]:
        """Return the next JSON object of each rank. Raises RuntimeError with the end of its stderr."""
        killer = threading.Timer(seconds, self.kill)
        killer.start()
        try:
            return [self._answer(rank) for rank in range(RANKS)]
        finally:
            killer.cancel()

    def run(self, workload: str, steps: int, seconds: float) -> dict[str, float]:
        """Run steps and return the means over the ranks."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{workload} {steps}\n")
            process.stdin.flush()
        got = self.answers(seconds + EXTRA_S)
        return {key: mean(answer[key] for answer in got) for key in got[0]}

    def kill(self) -> None:
        """End the processes at once."""
        for process in self._processes:
            process.kill()

    def finish(self) -> None:
        """Let the processes end by themselves."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()

    def close(self) -> None:
        """Wait for the end of the processes; kill those that do not end."""
        self.finish()
        for process, errors in zip(self._processes, self._errors, strict=True):
            try:
                process.wait(EXTRA_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
            errors.close()

    def _answer(self, rank: int) -> dict[str, Any]:
        output = self._processes[rank].stdout
        assert output is not None
        for line in output:
            if line.startswith("{"):  # a library may print before
                answer: dict[str, Any] = json.loads(line)
                return answer
        self.kill()  # the other rank waits for this one
        self._errors[rank].seek(0)
        raise RuntimeError(f"{self.mode}, rank {rank}: ended: {self._errors[rank].read().strip()[-800:]}")


def measure_ddp(
    rounds: int,
    seconds: float,
    modes: Sequence[str],
    workloads: Sequence[str],
    folder: Path,
    progress: Progress,
    first: int = 0,
) -> tuple[Rounds, dict[str, str]]:
    """Return all values of all rounds, and versions. Raises RuntimeError if a process fails.

    `first`: number of the first round, which the order depends on.
    """
    values: Rounds = {workload: {mode: [] for mode in modes} for workload in workloads}
    versions: dict[str, str] = {}
    for number in range(first, first + rounds):
        with ExitStack() as stack:
            progress(f"round {number + 1}: {len(modes)} modes start")
            ranks: dict[str, Ranks] = {}
            for mode in modes:
                ranks[mode] = Ranks(mode, workloads, folder)
                stack.callback(ranks[mode].close)
            for mode in modes:
                ready = ranks[mode].answers(START_S)[0]
                if not ready["attached"]:
                    raise RuntimeError(f"{mode}: nothing is attached")
                versions |= {name: text for name, text in ready["versions"].items() if text != "0"}
            begin = number % len(modes)
            order = [*modes[begin:], *modes[:begin]]
            for workload in workloads:
                progress(f"round {number + 1}: {workload}")
                for mode, measured in _run_blocks(ranks, order, workload, seconds).items():
                    values[workload][mode].append(measured)
            for mode in modes:
                ranks[mode].finish()
    return values, versions


def _run_blocks(
    ranks: dict[str, Ranks], order: Sequence[str], workload: str, seconds: float
) -> dict[str, dict[str, float]]:
    """Return the mean of the blocks of each mode; all have as many steps."""
    steps = max(ESTIMATED, int(seconds / BLOCKS * 1e3 / ranks["plain"].run(workload, ESTIMATED, seconds)["ms"]))
    blocks: dict[str, list[dict[str, float]]] = {mode: [] for mode in order}
    for number in range(BLOCKS):
        for mode in order[:: -1 if number % 2 else 1]:
            blocks[mode].append(ranks[mode].run(workload, steps, seconds))
    return {mode: {key: mean(block[key] for block in blocks[mode]) for key in blocks[mode][0]} for mode in order}


def mean_ratio(values: Sequence[float], base: Sequence[float]) -> tuple[float, float]:
    """Return the mean ratio over pairs and half of its 95% interval (Student's t); infinity for one pair."""
    ratios = [value / plain for value, plain in zip(values, base, strict=True)]
    if len(ratios) < 2:
        return ratios[0], float("inf")
    return mean(ratios), _student(len(ratios) - 1) * stdev(ratios) / len(ratios) ** 0.5


def add_ddp(report: BenchReport, rounds: Rounds) -> None:
    """Add step time and CPU of every mode beside plain, and its mean ratio with the interval."""
    for workload, modes in rounds.items():
        plain = modes["plain"]
        for mode, values in modes.items():
            name = f"{workload}, {mode}"
            for key, text in (("ms", "mean step"), ("cpu_ms", "CPU of the process a step")):
                base = mean(value[key] for value in plain)
                report.add(f"{name}: {text}", mean(value[key] for value in values), "ms", base)
            if mode == "plain":
                continue
            ratio, half = mean_ratio([value["ms"] for value in values], [value["ms"] for value in plain])
            limit = TARGETS.get((workload, mode))
            target: dict[str, Any] = {"target": 100 * (limit - 1), "at_most": True} if limit else {}
            count = f"{len(values)} rounds"
            report.add(f"{name}: above plain, mean of {count}", 100 * (ratio - 1), "%", **target)
            report.add(f"{name}: above plain, 95% interval, +-", 100 * half, "points")
            if records := mean(value["records"] for value in values):
                report.add(f"{name}: records in the ring a step", records, "records")


def _student(degrees: int) -> float:
    """Return the 97.5% quantile of Student's t by its expansion in 1/degrees (Abramowitz and Stegun 26.7.5)."""
    x = float(NormalDist().inv_cdf(0.975))
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    quantile: float = x + sum(term / degrees**power for power, term in enumerate(terms, 1))
    return quantile


__all__ = ["MODES", "WORKLOADS", "Rounds", "add_ddp", "mean_ratio", "measure_ddp"]
