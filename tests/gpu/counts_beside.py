"""Parts of counts.py beside its prices: are the counts right, who loses data beside a profiler, what is left over."""

import json
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
from counts_tiers import COUNTING, Tier, price, ready, report, results, text_of
from deep_rows import columns, processes

CUDA_GRAPH = "graph"


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
        for key, of in list(wrong.items())[:8]:
            report(f"    counted, recorded {of}: {key[:150]}")


def right(until: float) -> None:
    """Counts beside records of the same runs; rows in the spool beside the table; kernels by name."""
    tier = Tier("right", COUNTING, "ddp,decode,replays")
    ready([tier])
    try:
        for workload, steps in (("ddp", 10), ("decode", 20), ("replays", 5), ("calls", 1)):
            compared(tier, workload, steps)
        results["fork"] = tier.request("fork")
        report(f"fork: {results['fork']}")
        answers = tier.request("totals", both=True)
    finally:
        tier.end()
    time.sleep(2)
    for rank, answer in enumerate(answers):
        rows = columns(tier.spool, "gpu.launch-count.v1").get(int(answer["pid"]), {})
        sums = {name: int(rows[name].sum()) for name in ("launches", "replayed", "bytes")} if rows else {}
        names = Counter()
        for name, launches in zip(rows.get("name", ()), rows.get("launches", ()), strict=True):
            names[str(name)[:90]] += int(launches)
        summary = {"table": answer, "rows": len(rows.get("launches", [])), "sums": sums, "names": names.most_common(8)}
        results.setdefault("rows", []).append({**summary, "kernels by name": len(names)})
        report(f"rank {rank}: table {answer}, rows {summary['rows']} with {sums}")
        report(f"rank {rank}: {len(names)} names, {names.most_common(3)}")
    results["right, processes"] = {str(pid): of for pid, of in processes(tier.spool).items()}


#: Name -> commands of a process of its own, and its variables.
ORDERS = {
    "profile, window, profile, both": (("window", "profile", "window", "profile", "both"), {}),
    "both first": (("both", "profile", "window"), {}),
    "profiler before CUDA": (("state", "window", "profile"), {"PROFILED": "1"}),
    "profiler that ends CUPTI": (("profile", "profile", "window"), {"TEARDOWN_CUPTI": "1"}),
}


def orders(until: float) -> None:
    """Each order of windows and PyTorch's profiler in a process of its own, all at once on both GPUs."""
    tiers = {
        name: Tier(name, COUNTING, "decode", gpu=at % 2, **variables)
        for at, (name, (_, variables)) in enumerate(ORDERS.items())
    }
    answers: dict[str, list] = {name: [] for name in ORDERS}

    def follow(name: str) -> None:
        try:
            ready([tiers[name]])
            for command in ORDERS[name][0]:
                (answer,) = tiers[name].request(command, within_s=60)
                answers[name].append({"command": command, **answer})
        except Exception as error:
            answers[name].append({"error": str(error)})
        tiers[name].end()

    with ThreadPoolExecutor(len(ORDERS)) as pool:
        list(pool.map(follow, ORDERS))
    time.sleep(1.5)
    for name, tier in tiers.items():
        for answer in answers[name]:
            for part in ("window", "window again"):
                if part in answer:
                    times = answer[part]
                    rows = recorded(tier.spool, int(answer["pid"]), int(times["begin_ns"]), int(times["end_ns"]))
                    times["recorded"] = sum(n for (key, at), n in rows.items() if not at and '"", ' not in key)
            report(f"{name}: {answer}")
        problems = {
            pid: {key: value for key, value in of.items() if key.startswith(("problem", "policy"))}
            for pid, of in processes(tier.spool).items()
        }
        results.setdefault("orders", {})[name] = {"answers": answers[name], "status": problems}
        report(f"{name}: status {problems}")


def left(until: float) -> None:
    """Price of counting in a process before deep windows and after, and what differs between the two."""
    tier = Tier("left", COUNTING, "decode,adds", gpu=1)
    ready([tier])
    pairs: dict[str, dict[str, list]] = {w: {"before": [], "after": []} for w in ("decode", "adds")}
    windows = []
    for when, times in (("before", 1), ("after", 100)):
        number = 0
        half = time.monotonic() + (until - time.monotonic()) * (0.4 if when == "before" else 0.85)
        while number < 1 or (time.monotonic() < half and number < times * 10):
            if when == "after":
                windows += tier.request("window")
            for workload, count in (("decode", 60), ("adds", 60)):
                pairs[workload][when] += tier.request(f"pairs {workload} {count}")[0]["pairs"]
            number += 1
    tier.end()
    states = Counter(str((answer["on"], answer["gone"], answer["state"])) for answer in windows)
    results["left"] = {"windows: on, gone, state": states}
    report(f"left: windows {states}")
    for workload, of in pairs.items():
        for when, both in of.items():
            row = price([median(on) for on, _, _, _ in both], [median(off) for _, _, off, _ in both])
            results["left"][f"{workload}: {when} windows"] = row
            report(f"left: {workload}: on against off {when} windows {text_of(row)}")
    results["left, pairs"] = pairs
