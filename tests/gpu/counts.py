"""Measure what policy counts costs, and whether it is right; called by counts.sh: counts.py OUT [PART...]

Parts, in this order; one that fails is reported, and the next begins:

    price     steps of two DDP ranks, a decode loop, replays of a graph and small kernels: none, light and counts
              live at once and run blocks in turn; and counting on against off in one process, three steps each in turn
    cores     DDP steps with 1, 2 and 4 cores a rank: recording of all operations of NCCL on against off
    right     counts beside records of the same runs, by kernel, shape and kind of copy; rows beside the table
    orders    PyTorch's profiler before, between, in and after windows: who loses data, and does the status say so
    left      counting on against off in one process, before and after deep windows

COUNTS_SECONDS: time for all (400). COUNTS_POLICY: what is measured (counts). COUNTS_CUPTI: a wheel of another CUPTI.
OUT/counts.json.
"""

import json
import os
import random
import sys
import time
import traceback
from statistics import mean, median

from counts_beside import left, orders, right
from counts_tiers import BEGAN, COUNTING, OUT, RANKS, Tier, price, ready, report, results, text_of

SECONDS = float(os.environ.get("COUNTS_SECONDS", "400"))
#: Share of the time that is left to a part, with the ones behind it.
SHARES = {"price": 0.5, "cores": 0.42, "right": 1.0, "orders": 1.0, "left": 1.0}
WORKLOADS = {"ddp": 8, "decode": 30, "replays": 5, "adds": 40}
PAIRS = {"ddp": 24, "decode": 40, "adds": 60}
tiers: dict[str, Tier] = {}


def started(*names: str) -> None:
    """Start the tiers that are not there yet, at once."""
    policies = {"none": "", "light": "light", "light, all": "light", "counts": COUNTING, "pairs": COUNTING}
    workloads = {"pairs": "ddp,decode,adds", "light, all": "ddp"}  # CUPTI that goes would break a graph
    new = [name for name in names if name not in tiers]
    for name in new:
        more = {"DRUMLINE_RINGS__TIMES": "all"} if name.endswith("all") else {}
        tiers[name] = Tier(name, policies[name], workloads.get(name, ",".join(WORKLOADS)), **more)
    ready([tiers[name] for name in new])


def save() -> None:
    (OUT / "counts.json").write_text(json.dumps(results, indent=1, default=int))


def rows_of(part: str, blocks: dict[str, dict[str, list]], base: str) -> None:
    """Add step and CPU time of each tier over `base` to the results, and print them."""
    for workload, by_tier in blocks.items():
        for name, values in by_tier.items():
            if name == base or len(values) < 2:
                continue
            plain = by_tier[base][: len(values)]
            row = {key: price([v[key] for v in values], [v[key] for v in plain]) for key in ("us", "cpu_us")}
            row |= {"us a step": median(v["us"] for v in values), "us of base": median(v["us"] for v in plain)}
            row["untimed steps"] = sum(v.get("untimed", 0) for v in values)
            results.setdefault(part, {})[f"{workload}: {name}"] = row
            report(f"{part}: {workload:8} {name:10} {row['us a step']:9.1f} us {text_of(row['us'])}")
            report(f"{part}: {workload:8} {name:10} CPU {row['cpu_us']['mean']:+.2f} +- {row['cpu_us']['+-']:.2f} %")
    results[f"{part}, blocks"] = blocks
    save()


def rows_of_pairs(part: str, sides: dict[str, list]) -> None:
    """Add what pairs of one process show to the results, and print it."""
    for name, pairs in sides.items():
        if len(pairs) < 2:
            continue
        row = {"us on": median(median(on) for on, *_ in pairs), "us off": median(median(off) for *_, off, _ in pairs)}
        for way, at in (("median", median), ("mean", mean)):
            row[way] = price([at(on) for on, *_ in pairs], [at(off) for *_, off, _ in pairs])
            report(f"{part}: {name:18} {row['us on']:9.1f} us, {way:6} of three {text_of(row[way])}")
        row["cpu"] = price([cpu for _, cpu, *_ in pairs], [cpu for *_, cpu in pairs])
        report(f"{part}: {name:18} CPU {text_of(row['cpu'])}")
        results.setdefault(part, {})[name] = {**row, "all": pairs}
    save()


def prices(until: float) -> None:
    """Step time of each tier over none; and of counting on over off in one process."""
    names = ["none", "light", "counts"]
    started(*names, "pairs")
    blocks: dict[str, dict[str, list]] = {w: {name: [] for name in names} for w in WORKLOADS}
    sides: dict[str, list] = {w: [] for w in PAIRS}
    number = 0
    while time.monotonic() < until - 14 or number < 2:
        order = list(names)
        random.Random(number).shuffle(order)
        for name in order:
            for workload, steps in WORKLOADS.items():
                blocks[workload][name].append(tiers[name].request(f"{workload} {steps}")[0])
        for workload, count in PAIRS.items():
            sides[workload] += tiers["pairs"].request(f"pairs {workload} {count}")[0]["pairs"]
        number += 1
    rows_of("price", blocks, "none")
    rows_of_pairs("on against off", sides)


def cores(until: float) -> None:
    """DDP steps with few cores a rank: the recording of NCCL's operations on against off."""
    started("light, all")
    sides: dict[str, list] = {f"operations, {count} cores": [] for count in (4, 2, 1)}
    while time.monotonic() < until - 16 or not all(sides.values()):
        for count in (4, 2, 1):
            tiers["light, all"].request(f"cores {count}", both=True)
            sides[f"operations, {count} cores"] += tiers["light, all"].request("rings ddp 8")[0]["pairs"]
    rows_of_pairs("cores", sides)


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    parts = {"price": prices, "cores": cores, "right": right, "orders": orders, "left": left}
    chosen = [name for name in parts if not sys.argv[2:] or name in sys.argv[2:]]
    for at, name in enumerate(chosen):
        now = time.monotonic()
        share = SHARES[name] if len(chosen) > at + 1 else 1.0
        until = now + share * (BEGAN + SECONDS - now)
        if name not in ("price", "cores"):
            for tier in tiers.values():
                tier.kill()
            tiers.clear()
        try:
            report(f"{name}: until {until - BEGAN:.0f} s")
            parts[name](until)
        except Exception:
            report(f"{name} failed: {traceback.format_exc()}")
            results[f"{name} failed"] = traceback.format_exc()
        save()
    report(f"done, {RANKS} GPUs")


if __name__ == "__main__":
    main()
