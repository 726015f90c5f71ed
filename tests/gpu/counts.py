"""Measure the counting of launches on two GPUs; called by counts.sh: counts.py OUT [PART...]

Parts: right (counts beside records of the same runs, by kernel, shape and kind of copy; rows in the spool beside the
table), beside (PyTorch's profiler, a fork, policy `counts` set while a job of policy auto runs), price (step time of
each tier over none). A part that fails is reported, and the next begins. COUNTS_SECONDS: time for all. COUNTS_TIERS:
names, by `;`.

For the price all tiers live at once, rest, and run blocks in turn, in an order of the round; the price is a geometric
mean of the rounds with its 95 % interval. `on against off` is one process of policy counts that counts, with CUPTI's
subscriber, in every other group of four steps, of which three are timed. OUT/counts.json.
"""

import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np
import torch
from deep_rows import columns, processes

from drumline.lab.bench.overhead.ratios import mean_ratio
from drumline.producers.launcher import LaunchOptions, environment
from drumline.producers.spool.location import make_rings

OUT, JOB = Path(sys.argv[1]), str(Path(__file__).with_name("counts_job.py"))
SECONDS = float(os.environ.get("COUNTS_SECONDS", "460"))
BEGAN = time.monotonic()
RANKS = min(2, torch.cuda.device_count())
TIERS = os.environ.get("COUNTS_TIERS", "none;light;counts;always").split(";")
WORKLOADS = {"ddp": 8, "replays": 5, "decode": 30}
#: Pairs of a round. Graphs from before a subscriber are unknown to it, so replays have none.
PAIRS = {"ddp": 6, "decode": 30}
PAIRED = "counts, on against off"
CUDA_GRAPH = "graph"
results: dict[str, object] = {"gpus": RANKS, "torch": torch.__version__, "cores": len(os.sched_getaffinity(0))}


def report(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def left() -> float:
    return SECONDS - (time.monotonic() - BEGAN)


class Tier:
    """The ranks of one tier, which answer a command a line. `spool`: of their rows."""

    def __init__(self, name: str, policy: str = "") -> None:
        self.name, self.spool = name, Path(tempfile.mkdtemp(prefix="counts-"))
        command = [sys.executable, JOB, name]
        shared = {**os.environ, "WORLD_SIZE": str(RANKS), "STORE_FILE": str(self.spool / ".store")}
        policy = policy or ("" if name == "none" else name.partition(",")[0])
        if policy:
            options = LaunchOptions(job="counts", run=name, policy=policy, spool=str(self.spool / "spool"))
            self.spool = self.spool / "spool"
            shared = environment(shared, command, options)
            make_rings(shared)
        cores = sorted(os.sched_getaffinity(0))
        share = min(8, len(cores) // RANKS)
        self.ranks = []
        for rank in range(RANKS):
            chosen = ",".join(map(str, cores[rank * share : (rank + 1) * share]))
            with (OUT / f"{name.replace(' ', '_')}-{policy}-{rank}.err").open("a") as errors:
                process = subprocess.Popen(
                    ["taskset", "-c", chosen, *command],
                    env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
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

    def request(self, command: str, both: bool = False, within_s: float = 60.0) -> list[dict[str, object]]:
        ranks = range(RANKS) if both or command.startswith("ddp") else range(1)
        for rank in ranks:
            self.ranks[rank].stdin.write(command + "\n")
            self.ranks[rank].stdin.flush()
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
    for tier in tiers:
        answers = [tier.answer(rank, 150) for rank in range(RANKS)]
        report(f"{tier.name}: {answers}")


def recorded(spool: Path, pid: int, begin_ns: int, end_ns: int) -> Counter:
    """Return the records of a process that started in a time: launches, replays, bytes of a kernel or kind of copy."""
    sums: Counter = Counter()
    for topic in ("gpu.kernel.v1", "gpu.memcpy.v1"):
        rows = columns(spool, topic).get(pid)
        if rows is None:
            continue
        inside = (rows["start_ns"] >= begin_ns) & (rows["start_ns"] < end_ns)
        for i in np.flatnonzero(inside).tolist():
            if topic == "gpu.kernel.v1":
                shape = [int(rows[f"{extent}_{axis}"][i]) for extent in ("grid", "block") for axis in "xyz"]
                key = json.dumps([rows["name"][i], shape])
            else:
                key = json.dumps(["", int(rows["kind"][i])])
                sums[key, 2] += int(rows["bytes"][i])
            sums[key, 0] += 1
            sums[key, 1] += rows[CUDA_GRAPH][i] > 0
    return sums


def compared(tier: Tier, workload: str, steps: int) -> None:
    """Compare counts with records of one run, on every rank."""
    answers = tier.request(f"check {workload} {steps}", both=True, within_s=90)
    for rank, answer in enumerate(answers):
        records = recorded(tier.spool, int(answer["pid"]), int(answer["begin_ns"]), int(answer["end_ns"]))
        counts = Counter({(key, at): n for key, of in answer["counts"].items() for at, n in enumerate(of) if n})
        of_kernels = [
            {key: n for key, n in of.items() if isinstance(json.loads(key[0])[1], list)} for of in (counts, records)
        ]
        kernels = [sum(n for (_, at), n in of.items() if at == which) for of in of_kernels for which in (0, 1)]
        wrong = {str(key): [counts[key], records[key]] for key in sorted(counts.keys() | records.keys())
                 if counts[key] != records[key]}  # fmt: skip
        names = f"{workload}, rank {rank}"
        summary = {
            "records on": answer["on"], "counted": kernels[0], "recorded": kernels[2], "counted, replayed": kernels[1],
            "recorded, of graphs": kernels[3], "different": len(wrong), "compared": len(counts),
        }  # fmt: skip
        results.setdefault("right", {})[names] = {**summary, "wrong": dict(list(wrong.items())[:60])}
        report(f"{names}: {summary}")
        for key, of in list(wrong.items())[:12]:
            report(f"    counted, recorded {of}: {key[:150]}")


def right() -> None:
    """Counts beside records of the same runs; rows in the spool beside the table."""
    tier = Tier("counts", "counts")
    ready([tier])
    try:
        for workload, steps in (("ddp", 10), ("decode", 20), ("replays", 5), ("calls", 1)):
            compared(tier, workload, steps)
        answers = tier.request("totals", both=True)
    finally:
        tier.end()
    time.sleep(2)
    for rank, answer in enumerate(answers):
        rows = columns(tier.spool, "gpu.launch-count.v1").get(int(answer["pid"]), {})
        sums = {name: int(rows[name].sum()) for name in ("launches", "replayed", "bytes")} if rows else {}
        report(f"rank {rank}: table {answer}, rows {len(rows.get('launches', []))} with {sums}")
        results.setdefault("rows", []).append({"table": answer, "rows": len(rows.get("launches", [])), "sums": sums})
    results["processes"] = {str(pid): of for pid, of in processes(tier.spool).items()}
    report(f"status {results['processes']}")


def beside() -> None:
    """PyTorch's profiler and a fork under policy counts; policy counts while a job runs."""
    tier, late = Tier("counts", "counts"), Tier("late", "auto")
    ready([tier, late])
    try:
        for command in ("fork", "profiler", "fork"):
            results[f"beside {command}"] = answer = tier.request(command)
            report(f"{command}: {answer}")
        late.request("ddp 5")
        late.spool.mkdir(exist_ok=True)
        (late.spool / "policy").write_text("counts\n")
        states = []
        for _ in range(12):
            late.request("ddp 20")
            states.append(late.request("state", both=True))
        (late.spool / "policy").unlink()
        report(f"late: {states[-1]}, totals {late.request('totals', both=True)}")
        time.sleep(3)
        results["late"] = [states[-1], late.request("state", both=True), late.request("ddp 20")]
        report(f"late, after: {results['late'][1:]}")
    finally:
        tier.end()
        late.end()
    rows = {pid: len(of["launches"]) for pid, of in columns(late.spool, "gpu.launch-count.v1").items()}
    results["late rows"] = {str(pid): count for pid, count in rows.items()}
    report(f"late, rows: {rows}, status {processes(late.spool)}")


def table(blocks: dict[str, dict[str, list]]) -> None:
    """Add the prices so far to the results."""
    prices: dict[str, object] = {}
    for workload, of in blocks.items():
        for name, values in of.items():
            base = of["off"] if name == PAIRED else of["none"]
            if name in ("off", "none") or len(values) < 2:
                continue
            row = {"rounds": len(values)}
            for key in ("us", "cpu_us"):
                ratio, half = mean_ratio([v[key] for v in values], [v[key] for v in base][: len(values)])
                row |= {f"{key} %": round(100 * (ratio - 1), 3), f"{key} +-": round(100 * half, 3)}
            row |= {"us": median(v["us"] for v in values), "base us": median(v["us"] for v in base)}
            prices[f"{workload}: {name}"] = row
    results["prices"], results["blocks"] = prices, blocks
    (OUT / "counts.json").write_text(json.dumps(results, indent=1, default=int))


def price() -> None:
    """Step time of each tier over none, and of counting on over off."""
    tiers = {name: Tier(name) for name in TIERS}
    paired = Tier("counts", "counts")
    ready([*tiers.values(), paired])
    blocks: dict[str, dict[str, list]] = {w: {name: [] for name in (*tiers, PAIRED, "off")} for w in WORKLOADS}
    number = 0
    while left() > 15:
        order = [*tiers, PAIRED]
        random.Random(number).shuffle(order)
        for name in order:
            if name == PAIRED:
                for workload, count in PAIRS.items():
                    for on, cpu_on, off, cpu_off in paired.request(f"pairs {workload} {count}", workload == "ddp")[0][
                        "pairs"
                    ]:
                        blocks[workload][PAIRED].append({"us": on, "cpu_us": cpu_on})
                        blocks[workload]["off"].append({"us": off, "cpu_us": cpu_off})
                continue
            for workload, steps in WORKLOADS.items():
                blocks[workload][name].append(tiers[name].request(f"{workload} {steps}")[0])
        number += 1
        table(blocks)
    for name, row in results["prices"].items():
        cpu = f"cpu {row['cpu_us %']:+.2f} +- {row['cpu_us +-']:.2f} %"
        report(
            f"{name:34} {row['us']:9.1f} us, {row['us %']:+7.2f} +- {row['us +-']:.2f} %, {cpu}, {row['rounds']} rounds"
        )
    for tier in (*tiers.values(), paired):
        tier.kill()


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name, part in (("right", right), ("beside", beside), ("price", price)):
        if not sys.argv[2:] or name in sys.argv[2:]:
            try:
                part()
            except Exception:
                report(f"{name} failed: {traceback.format_exc()}")
                results[f"{name} failed"] = traceback.format_exc()
        (OUT / "counts.json").write_text(json.dumps(results, indent=1, default=int))


if __name__ == "__main__":
    main()
