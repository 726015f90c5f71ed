"""DDP workloads of `drumline bench overhead`: two ranks on two GPUs, with NCCL, under each mode in turn.

Processes of one mode differ from each other by more than what is measured. So a round starts the ranks of all modes
anew, on the same cores (two sets, one a rank), and then lets one mode after the other run for a moment while the rest
wait. The host's speed drifts too, so moments are short and each is compared with the plain one beside it. What counts
is the ratio of a mode to plain within its round; the interval is over rounds. Starting takes most of the time: `sets`
of processes start at once, are measured one after the other, and count as rounds of their own.

Processes still differ by several percent within a round. So those of mode light also switch their recording off and on
in turn, between steps: pairs of blocks of one process.
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
from statistics import mean
from typing import Any

from drumline.lab.bench.overhead.ddp_job import MODES, POLICIES, WARM_UP, WORKLOADS
from drumline.lab.bench.overhead.ratios import ON_OFF, PAIRED, Rounds, mean_ratio
from drumline.lab.bench.result import Progress
from drumline.producers.launcher import LaunchOptions, environment
from drumline.producers.spool.location import make_rings

RANKS = 2
#: Length of a block of a mode, and with the recording on or off; s. Short: the host's speed drifts by 10 to 30 % within
#: seconds. Every second round of blocks is in the opposite order.
BLOCK_S, PAIRED_BLOCK_S = 0.4, 0.15
#: Steps by which the length of a block is estimated.
ESTIMATED = 5
#: Longest time until a process is ready, and of a block beyond its own length; s.
START_S, EXTRA_S = 180, 60
#: Workload whose steps wait for the GPU: the median of a block's steps is meaningful.
WAITING = "ddp_launch_bound"


class Ranks:
    """The processes of one mode in one round. Leaving ends them; a process that does not answer is killed."""

    def __init__(self, mode: str, workloads: Sequence[str], spool: Path) -> None:
        self.mode = mode
        command = [sys.executable, "-m", "drumline.lab.bench.overhead.ddp_job", mode, *workloads]
        if mode == "gpufl":
            command = ["gpufl", "trace", "--", *command]
        variables = {**os.environ, "PYTHONHASHSEED": "0", "WORLD_SIZE": str(RANKS)}
        variables["OMP_NUM_THREADS"] = "1"
        # A port may be another's by the time it is used.
        variables["STORE_FILE"] = str(spool / f"store-{mode}-{time.monotonic_ns()}")
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

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        return _means(self._request(f"{workload} {steps}", seconds))

    def run_pairs(self, workload: str, steps: int, pairs: int, seconds: float) -> list[tuple[dict[str, float], ...]]:
        """Run pairs of blocks, and return the means over the ranks, of recording on and off."""
        ranks = self._request(f"{workload} {steps} {pairs}", seconds)
        on, off = ([_means(blocks) for blocks in zip(*(rank[key] for rank in ranks), strict=True)] for key in ON_OFF)
        return list(zip(on, off, strict=True))

    def _request(self, line: str, seconds: float) -> list[dict[str, Any]]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return self.answers(seconds + EXTRA_S)

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
    sets: int = 1,
    paired: bool = True,
) -> tuple[Rounds, dict[str, str]]:
    """Return all values of all rounds, and versions. Raises RuntimeError if a process fails.

    `first`: number of the first round, which the order depends on. `sets`: of processes that start at once. `paired`:
    switch the recording of mode light too.
    """
    values: Rounds = {workload: {mode: [] for mode in modes} for workload in workloads}
    versions: dict[str, str] = {}
    for number in range(first, first + rounds):
        progress(f"round {number + 1}: {sets} x {len(modes)} modes start")
        with ExitStack() as stack:
            firsts = [(number + i) % len(modes) for i in range(sets)]
            orders = [[*modes[first:], *modes[:first]] for first in firsts]
            started = [
                {mode: stack.enter_context(Ranks(mode, workloads, folder)) for mode in order} for order in orders
            ]
            for ranks in started:
                versions |= _wait_until_ready(ranks)
            for ranks, order in zip(started, orders, strict=True):
                for workload in workloads:
                    progress(f"round {number + 1}: {workload}")
                    measured = _run_blocks(ranks, order, workload, seconds)
                    if paired and "light" in ranks:
                        measured[PAIRED] = _run_pairs(ranks["light"], workload, seconds, measured["light"]["ms"])
                    progress(", ".join(f"{mode} {means['ratio']:.4f}" for mode, means in measured.items()))
                    for mode, means in measured.items():
                        values[workload].setdefault(mode, []).append(means)
            for ranks in started:
                for mode in modes:
                    ranks[mode].finish()
    return values, versions


def _wait_until_ready(ranks: dict[str, Ranks]) -> dict[str, str]:
    """Return the versions that the processes state. Raises RuntimeError if one does not record what its mode says."""
    versions: dict[str, str] = {}
    for mode, both in ranks.items():
        ready = both.answers(START_S)[0]
        if not ready["attached"]:
            raise RuntimeError(f"{mode}: nothing is attached")
        versions |= {name: text for name, text in ready["versions"].items() if text != "0"}
    return versions


def _run_blocks(
    ranks: dict[str, Ranks], order: Sequence[str], workload: str, seconds: float
) -> dict[str, dict[str, float]]:
    """Return the means of the blocks of each mode, and their mean ratio to the plain ones beside them.

    All blocks have as many steps. `ratio`: of the blocks' medians where steps wait for the GPU; `mean_ratio`: of means.
    """
    for mode in order:
        ranks[mode].run(workload, WARM_UP, seconds)
    steps = max(ESTIMATED, int(BLOCK_S * 1e3 / ranks["plain"].run(workload, ESTIMATED, seconds)["ms"]))
    blocks: dict[str, list[dict[str, float]]] = {mode: [] for mode in order}
    for number in range(2 * max(1, round(seconds / BLOCK_S / 2))):
        for mode in order[:: -1 if number % 2 else 1]:
            blocks[mode].append(ranks[mode].run(workload, steps, seconds))
    return {mode: {**_means(blocks[mode]), **_ratios(blocks[mode], blocks["plain"], workload)} for mode in order}


def _ratios(blocks: Sequence[dict[str, float]], plain: Sequence[dict[str, float]], workload: str) -> dict[str, float]:
    keys = {"ratio": _key(workload), "mean_ratio": "ms"}
    return {name: mean_ratio([b[key] for b in blocks], [b[key] for b in plain])[0] for name, key in keys.items()}


def _key(workload: str) -> str:
    return "median_ms" if workload == WAITING else "ms"


def _run_pairs(ranks: Ranks, workload: str, seconds: float, step_ms: float) -> dict[str, float]:
    """Return the mean ratio of blocks with the recording on to those with it off, and the means of both."""
    pairs = 2 * max(1, round(seconds / PAIRED_BLOCK_S / 2))
    steps = max(ESTIMATED, int(1e3 * PAIRED_BLOCK_S / step_ms))
    key = _key(workload)
    blocks = ranks.run_pairs(workload, steps, pairs, seconds)
    means = {
        f"{name}_{key}": value for i, name in enumerate(ON_OFF) for key, value in _means([b[i] for b in blocks]).items()
    }
    ratio, _ = mean_ratio([on[key] for on, _ in blocks], [off[key] for _, off in blocks])
    return {"ratio": ratio, "pairs": pairs, **means}


def _means(blocks: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {key: mean(block[key] for block in blocks) for key in blocks[0]}


__all__ = ["MODES", "WORKLOADS", "measure_ddp"]
