"""Measure what each way of using CUPTI costs a launch, a replay, a DDP step and a decoded token: prices.py WHEEL OUT

WHEEL: folder of an unpacked nvidia-cuda-cupti wheel of 13.2 or later, which stands beside PyTorch's own version; its
headers build prices.c. Every mode has its own processes, two ranks where there are two GPUs. All live at once and rest;
in each round they run a block of each workload one after the other, in an order of the round. A price is a mode's block
over the plain one of the round, as a geometric mean of the rounds with its 95 % interval. OUT/prices.json.
PRICES_SECONDS: time for all. PRICES_MODES: names, by `;`.
"""

import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from math import exp, log
from pathlib import Path
from statistics import mean, median, stdev

import torch

FOLDER = Path(__file__).parent
END = time.monotonic() + float(os.environ.get("PRICES_SECONDS", "500"))
RANKS = min(2, torch.cuda.device_count())
#: Steps of a block.
WORKLOADS = {"launches": 10, "replays": 20, "ddp": 12, "decode": 25}
#: Modes of prices.c: with PyTorch's CUPTI, and with the wheel's.
LAUNCHES = (
    "kernels and calls", "kernels and driver calls", "kernels and runtime calls", "kernels and timed driver launches",
    "kernels and timed runtime launches", "kernels and timed launches of both",
)  # fmt: skip
OLD = ("kernels", "as recorded today", "driver callbacks", *LAUNCHES)
NEW = (
    "plain", "subscriber", "driver callbacks", "runtime callbacks", "kernels", "kernels, serial",
    "kernels, buffers of 64 KB", "kernels, buffers of 8 MB", "kernels, one buffer of all threads",
    "kernels, graphs whole", "copies", "markers", "runtime calls", "as recorded today", "hardware times",
    "no times", "4 fields", "8 fields", "17 fields", "17 fields, several subscribers", "17 fields, graphs whole",
    "all fields", *LAUNCHES,
)  # fmt: skip
#: Student's t by degrees of freedom from 1; the last one holds beyond.
T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)


def price(values: list[float], plain: list[float]) -> dict[str, float]:
    """Return the geometric mean of the ratios, half of its 95 % interval, and the median; %, us."""
    logs = [log(value / base) for value, base in zip(values, plain, strict=True)]
    half = T95[min(len(logs) - 2, len(T95) - 1)] * stdev(logs) / len(logs) ** 0.5
    ratio = exp(mean(logs))
    return {"%": 100 * (ratio - 1), "+-": 100 * ratio * half, "us": median(values), "rounds": len(logs)}


class Mode:
    """The ranks of one mode, which answer a command a line."""

    def __init__(self, name: str, mode: str, library: Path, cupti: str, out: Path, cores: list[int]) -> None:
        self.name = name
        store = tempfile.mktemp()
        self.ranks = []
        for rank in range(RANKS):
            at = cores[8 * rank : 8 * rank + 8]
            with (out / "errors.log").open("a") as errors:
                process = subprocess.Popen(
                    [sys.executable, FOLDER / "prices_job.py", mode, library, cupti],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                    env=os.environ | {
                        "RANK": str(rank), "WORLD_SIZE": str(RANKS), "STORE_FILE": store,
                        "NCCL_NVLS_ENABLE": "0",
                    },
                    preexec_fn=lambda at=at: os.sched_setaffinity(0, at) if at else None,
                )  # fmt: skip
            self.ranks.append(process)

    def answer(self, rank: int, within_s: float = 40.0) -> dict[str, float]:
        """Return a rank's next answer; {"refused": why} of one that hangs or has ended."""
        if not select.select([self.ranks[rank].stdout], [], [], within_s)[0]:
            return {"refused": "hangs"}
        line = self.ranks[rank].stdout.readline()
        return json.loads(line) if line else {"refused": f"ended, code {self.ranks[rank].wait()}"}

    def request(self, command: str) -> dict[str, float]:
        ranks = range(RANKS) if "ddp" in command or command in ("off", "finalize") else (0,)
        for rank in ranks:
            self.ranks[rank].stdin.write(command + "\n")
            self.ranks[rank].stdin.flush()
        answers = [self.answer(rank) for rank in ranks]
        return next((answer for answer in answers if "refused" in answer), answers[0])

    def kill(self) -> None:
        for process in self.ranks:
            process.kill()


def rounds(modes: dict[str, Mode], until: float, most: int, workloads: dict[str, int]) -> dict[str, dict[str, list]]:
    """Return the blocks of each workload and mode, in rounds of all modes. One that hangs leaves the others."""
    blocks: dict[str, dict[str, list]] = {workload: {name: [] for name in modes} for workload in workloads}
    for number in range(most):
        if time.monotonic() > until:
            break
        for workload, steps in workloads.items():
            order = list(modes)
            random.Random(number).shuffle(order)
            for name in order:
                if "refused" in (answer := modes[name].request(f"{workload} {steps}")):
                    print("lost", name, workload, answer, flush=True)
                    modes.pop(name).kill()
                else:
                    blocks[workload][name].append(answer)
    return blocks


def table(blocks: dict[str, dict[str, list]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the prices of each workload and mode, of time and of CPU time."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for workload, of in blocks.items():
        for name, values in of.items():
            plain = of["plain"][: len(values)]
            if len(values) < 2:
                continue
            row = price([v["us"] for v in values], [v["us"] for v in plain])
            row["cpu %"] = price([v["cpu_us"] for v in values], [v["cpu_us"] for v in plain])["%"]
            result.setdefault(workload, {})[name] = {key: round(value, 3) for key, value in row.items()}
    return result


def main() -> None:
    """Start all modes, time the rounds, count records, and time what is left once records are off."""
    wheel, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    library = Path(tempfile.mkdtemp()) / "prices.so"
    headers = [wheel / "nvidia/cu13/include", Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    subprocess.run(
        ["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", FOLDER / "prices.c", "-o", library, "-ldl", "-lpthread"]
        + [f"-I{folder}" for folder in headers],
        check=True,
    )
    newer = str(next((wheel / "nvidia/cu13/lib").glob("libcupti.so.*")))
    chosen = [name for name in os.environ.get("PRICES_MODES", "").split(";") if name]
    cores = sorted(os.sched_getaffinity(0))
    plan = [(mode, mode, newer) for mode in NEW] + [(f"{mode} (PyTorch's CUPTI)", mode, "") for mode in OLD]
    modes = {
        name: Mode(name, mode, library, cupti, out, cores)
        for name, mode, cupti in plan
        if not chosen or name in chosen or name == "plain"
    }
    ready = {name: [mode.answer(rank, 150) for rank in range(RANKS)] for name, mode in modes.items()}
    rejected = {name: answers for name, answers in ready.items() if any("ready" not in answer for answer in answers)}
    print("ready", ready, flush=True)
    modes = {name: mode for name, mode in modes.items() if name not in rejected}
    results: dict[str, object] = {"gpus": RANKS, "cores": len(cores), "torch": torch.__version__, "refused": rejected}

    def save() -> None:
        (out / "prices.json").write_text(json.dumps(results, indent=1))

    blocks = rounds(modes, END - 100, 80, WORKLOADS)
    results["on"], results["blocks"] = table(blocks), blocks
    save()
    results["counts"] = {
        name: {workload: mode.request(f"counts {workload} 2") for workload in WORKLOADS} for name, mode in modes.items()
    }
    save()
    records = [name for name in modes if any(part in name for part in ("kernels", "fields", "today", "no times"))]
    for how in ("off", "finalize"):
        results[f"{how}: result"] = {name: modes[name].request(how) for name in records}
        left = {name: modes[name] for name in ("plain", *records)}
        until = END - (45 if how == "off" else 5)
        after = rounds(left, until, 8, {name: WORKLOADS[name] for name in ("launches", "ddp")})
        results[f"after {how}"] = table(after)
        save()
    for workload, of in results["on"].items():
        for name, row in sorted(of.items(), key=lambda item: item[1]["%"]):
            cost = f"{row['%']:+8.2f} +- {row['+-']:.2f} %, cpu {row['cpu %']:+.1f} %, {row['rounds']} rounds"
            print(f"{workload:9}{name:40}{row['us']:10.2f} us{cost}")
    for mode in modes.values():
        mode.kill()


if __name__ == "__main__":
    main()
