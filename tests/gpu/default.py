"""Measure the default policy on two GPUs; called by default.sh: default.py OUT [PART...]

Parts, in this order; one that fails is reported, and the next begins:

    price     steps of two DDP ranks, a decode loop, replays of a graph and small kernels: none, light and the default
              live at once and run blocks in turn; then counting on against off in one process, three steps each in turn
    cores     DDP steps with 1, 2 and 4 cores a rank: none, light with all steps measured, the default
    right     counts beside records of the same runs, by kernel, shape and kind of copy; rows beside the table
    orders    PyTorch's profiler before, between, in and after windows: who loses data, and does the status say so
    left      steps of a process after deep windows against one without, and against none

DEFAULT_SECONDS: time for all (400). DEFAULT_POLICY: what is measured (auto). DEFAULT_CUPTI: a wheel of another CUPTI.
OUT/default.json.
"""

import json
import os
import random
import sys
import time
import traceback
from statistics import mean, median

from default_beside import left, orders, right
from default_tiers import BEGAN, DEFAULT, OUT, RANKS, Tier, price, ready, report, results, text_of

SECONDS = float(os.environ.get("DEFAULT_SECONDS", "400"))
#: Share of the time that is left to a part, with the ones behind it.
SHARES = {"price": 0.46, "cores": 0.3, "right": 1.0, "orders": 1.0, "left": 1.0}
WORKLOADS = {"ddp": 8, "decode": 30, "replays": 5, "adds": 40}
PAIRS = {"ddp": 20, "decode": 30, "replays": 12, "adds": 60}
tiers: dict[str, Tier] = {}


def started(*names: str) -> None:
    """Start the tiers that are not there yet, at once."""
    policies = {"none": "", "light": "light", "light, all": "light", "default": DEFAULT}
    new = [name for name in names if name not in tiers]
    for name in new:
        more = {"DRUMLINE_RINGS__TIMES": "all"} if name.endswith("all") else {}
        tiers[name] = Tier(name, policies[name], ",".join(WORKLOADS), **more)
    ready([tiers[name] for name in new])


def save() -> None:
    (OUT / "default.json").write_text(json.dumps(results, indent=1, default=int))


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


def prices(until: float) -> None:
    """Step time of each tier over none; then of counting on over off in one process."""
    started("none", "light", "default")
    names = ["none", "light", "default"]
    blocks: dict[str, dict[str, list]] = {w: {name: [] for name in names} for w in WORKLOADS}
    sides: dict[str, list] = {w: [] for w in WORKLOADS}
    number = 0
    while time.monotonic() < until - 12 or number < 2:
        order = list(names)
        random.Random(number).shuffle(order)
        for name in order:
            for workload, steps in WORKLOADS.items():
                blocks[workload][name].append(tiers[name].request(f"{workload} {steps}")[0])
        for workload, count in PAIRS.items():
            sides[workload] += tiers["default"].request(f"pairs {workload} {count}")[0]["pairs"]
        number += 1
    rows_of("price", blocks, "none")
    for workload, pairs in sides.items():
        row = {
            "us on": median(median(on) for on, _, _, _ in pairs),
            "us off": median(median(off) for *_, off, _ in pairs),
        }
        for way, at in (("median", median), ("least", min), ("mean", mean)):
            row[way] = price([at(on) for on, _, _, _ in pairs], [at(off) for _, _, off, _ in pairs])
            report(f"on against off, {workload:8} {row['us on']:9.1f} us, {way:6} of three {text_of(row[way])}")
        row["cpu"] = price([cpu for _, cpu, _, _ in pairs], [cpu for *_, cpu in pairs])
        results.setdefault("on against off", {})[workload] = {**row, "all": pairs}
    save()


def cores(until: float) -> None:
    """DDP steps of each tier over none, with few cores a rank."""
    names = ["none", "light, all", "default"]
    started(*names)
    blocks: dict[str, dict[str, list]] = {f"{count} cores": {name: [] for name in names} for count in (4, 2, 1)}
    number = 0
    while time.monotonic() < until - 8 or number < 2:
        for count in (4, 2, 1):
            order = list(names)
            random.Random(number).shuffle(order)
            for name in order:
                tiers[name].request(f"cores {count}", both=True)
                blocks[f"{count} cores"][name].append(tiers[name].request("ddp 6")[0])
        number += 1
    rows_of("cores", blocks, "none")
    for tier in tiers.values():
        tier.request("cores 8", both=True)


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
