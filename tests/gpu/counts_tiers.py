"""Processes of tiers, which live at once and run blocks in turn, for counts.py and counts_beside.py."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import zipfile
from math import exp, log
from pathlib import Path
from statistics import median

import torch

from drumline.producers.launcher import LaunchOptions, environment
from drumline.producers.spool.location import make_rings

OUT, JOB = Path(sys.argv[1]), str(Path(__file__).with_name("counts_job.py"))
BEGAN = time.monotonic()
RANKS = min(2, torch.cuda.device_count())
#: The policy that is measured; and another CUPTI for all processes: a wheel.
COUNTING, WHEEL = os.environ.get("COUNTS_POLICY", "counts"), os.environ.get("COUNTS_CUPTI", "")
results: dict[str, object] = {"gpus": RANKS, "torch": torch.__version__, "of the machine": len(os.sched_getaffinity(0))}


def report(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def other_cupti() -> dict[str, str]:
    """Return the variables by which processes use the CUPTI of COUNTS_CUPTI, which is loaded before PyTorch's."""
    if not WHEEL:
        return {}
    folder = Path(tempfile.gettempdir()) / f"cupti-{Path(WHEEL).name}"
    if not folder.exists():
        zipfile.ZipFile(WHEEL).extractall(folder)
    libraries = [path for path in folder.rglob("libcupti.so.*") if path.name.count(".") == 2]
    return {"LD_PRELOAD": str(libraries[0])}


CUPTI = other_cupti()
results["cupti"] = Path(WHEEL).name or "PyTorch's"


class Tier:
    """The ranks of one tier, which answer a command a line. `spool`: of their rows.

    `policy`: "" = none. `gpu`: of a single process; -1 = a rank on each GPU.
    """

    def __init__(self, name: str, policy: str, workloads: str, gpu: int = -1, **variables: str) -> None:
        self.name, self.spool = name, Path(tempfile.mkdtemp(prefix="counts-"))
        self.gpus = list(range(RANKS)) if gpu < 0 else [min(gpu, RANKS - 1)]
        command = [sys.executable, JOB, policy or "none", workloads]
        shared = {**os.environ, **CUPTI, "WORLD_SIZE": str(len(self.gpus)), "STORE_FILE": str(self.spool / ".store")}
        shared |= variables
        if policy:
            options = LaunchOptions(job="counts", run=name, policy=policy, spool=str(self.spool / "spool"))
            self.spool = self.spool / "spool"
            shared = environment(shared, command, options)
            make_rings(shared)
        cores = sorted(os.sched_getaffinity(0))
        share = min(8, len(cores) // RANKS)
        self.ranks = []
        for rank, device in enumerate(self.gpus):
            chosen = ",".join(map(str, cores[device * share : (device + 1) * share]))
            with (OUT / f"{name.replace(' ', '_')}-{rank}.err").open("a") as errors:
                process = subprocess.Popen(
                    ["taskset", "-c", chosen, *command],
                    env={**shared, "RANK": str(rank), "LOCAL_RANK": str(device)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
            self.ranks.append(process)

    def answer(self, rank: int, within_s: float) -> dict[str, object]:
        if not select.select([self.ranks[rank].stdout], [], [], within_s)[0]:
            raise RuntimeError(f"{self.name}, rank {rank} hangs")
        if not (line := self.ranks[rank].stdout.readline()):
            raise RuntimeError(f"{self.name}, rank {rank} has ended, code {self.ranks[rank].wait()}")
        return json.loads(line)

    def send(self, command: str, ranks: range) -> None:
        for rank in ranks:
            self.ranks[rank].stdin.write(command + "\n")
            self.ranks[rank].stdin.flush()

    def request(self, command: str, both: bool = False, within_s: float = 60.0) -> list[dict[str, object]]:
        """Return the answers of all ranks where `both`, or in DDP; else of the first."""
        ranks = range(len(self.ranks) if both or "ddp" in command else 1)
        self.send(command, ranks)
        return [self.answer(rank, within_s) for rank in ranks]

    def end(self) -> None:
        """End the processes in order."""
        for process in self.ranks:
            process.stdin.close()
        for process in self.ranks:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                report(f"{self.name}: a rank does not end")
                process.kill()

    def kill(self) -> None:
        for process in self.ranks:
            process.kill()


def ready(tiers: list[Tier]) -> None:
    """Wait until all have prepared their workloads."""
    for tier in tiers:
        answers = [tier.answer(rank, 150) for rank in range(len(tier.ranks))]
        results.setdefault("ready", {})[tier.name] = answers
        report(f"{tier.name}: {answers}")


def price(values: list[float], base: list[float]) -> dict[str, float]:
    """Return what pairs of values show, in %: geometric mean and median, each with half of its 95 % interval.

    The median's interval is that of order statistics, by the normal form of the binomial distribution: a few steps of
    a busy machine move the mean, and not the median.
    """
    from drumline.lab.bench.overhead.ratios import mean_ratio

    ratio, half = mean_ratio(values, base)
    logs = sorted(log(value / plain) for value, plain in zip(values, base, strict=True))
    count = len(logs)
    reach = 0.98 * count**0.5
    low, high = logs[max(0, int(count / 2 - reach))], logs[min(count - 1, int(count / 2 + reach))]
    in_percent = {
        "mean": ratio - 1, "+-": half, "median": exp(median(logs)) - 1, "median from": exp(low) - 1,
        "median to": exp(high) - 1,
    }  # fmt: skip
    return {"pairs": count, **{name: round(100 * value, 3) for name, value in in_percent.items()}}


def text_of(row: dict[str, float]) -> str:
    return (
        f"{row['mean']:+7.2f} +- {row['+-']:.2f} % (median {row['median']:+.2f}, "
        f"{row['median from']:+.2f} to {row['median to']:+.2f}) in {row['pairs']:.0f}"
    )
