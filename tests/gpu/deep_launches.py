"""Measure deep windows of a launch-bound DDP job, with launches, stacks, or samples of the GPU: deep_launches.py OUT

Called by deep.sh. Blocks of a plain job and of one with policy auto in turn (as `window` of light.py): before, in a
window with kernels, with launches, with launches and stacks, with samples of the GPU of rank 0, and after them.
OUT/launches.json: ratios to plain with their 95 % intervals; and of each process what its rows show: which kernels have
a launch and a scope, how long after its call a kernel began, whether py-spy knows the threads, what warps waited for.
DEEP_SECONDS: time for all.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import light
import numpy as np
from deep_rows import columns, processes, window

from drumline.lab.bench.overhead import ratios
from drumline.producers.collector.stack_samples import PERIOD_S
from drumline.producers.stacks.sampling_run import py_spy

END = time.monotonic() + float(os.environ.get("DEEP_SECONDS", "170"))
#: Pairs of blocks of a phase; length of a block; time that follows the phases; s.
PAIRS, BLOCK_S, REST_S = int(os.environ.get("DEEP_PAIRS", "24")), 0.25, 25.0
#: Job of light_job.py.
JOB = "window"
results: dict[str, object] = {}


def save() -> None:
    (light.OUT / "launches.json").write_text(json.dumps(results, indent=1, default=str))


class Pair:
    """A plain job and a recorded one, whose blocks are timed in turn."""

    def __init__(self, spool: Path) -> None:
        self.plain = light.start(JOB, "", spool, stdin=subprocess.PIPE)
        self.recorded = light.start(JOB, "auto", spool, stdin=subprocess.PIPE)
        for ranks in (self.plain, self.recorded):
            light.request(ranks, "")
        self.steps = max(6, int(BLOCK_S * 1e3 / light.request(self.plain, "steps 30")["ms"]))
        self.phases: dict[str, dict[str, object]] = {}

    def phase(self, name: str) -> None:
        """Time a phase, and report it beside the first one."""
        light.request(self.recorded, "placed")
        begin_ns = time.time_ns()
        blocks = []
        for number in range(PAIRS):
            if END - time.monotonic() < REST_S:
                break
            order = (self.plain, self.recorded) if number % 2 else (self.recorded, self.plain)
            pair = [light.request(ranks, f"steps {self.steps}") for ranks in order]
            blocks.append(pair if number % 2 else pair[::-1])
        ms = [[block["median_ms"] for block in pair] for pair in blocks]
        ratio, half = ratios.mean_ratio([b for _, b in ms], [a for a, _ in ms])
        self.phases[name] = {
            "ratio": round(ratio, 4), "+-": round(half, 4), "pairs": len(blocks), "ms": np.round(ms, 3).tolist(),
            "cpu_ms": np.round([[block["cpu_ms"] for block in pair] for pair in blocks], 2).tolist(),
            **light.request(self.recorded, "state"), "span_ns": [begin_ns, time.time_ns()],
        }  # fmt: skip
        first = next(iter(self.phases.values()))
        self.phases[name]["of the first"] = round(ratio / first["ratio"], 4)
        results["phases"] = self.phases
        save()
        light.report(f"{name}: {ratio:.4f} +- {half:.4f} of plain, {self.phases[name]['status']}")

    def until(self, status: str) -> float:
        """Let the recorded job step until it has a status; s."""
        begin = time.monotonic()
        for _ in range(60):
            light.request(self.recorded, f"steps {self.steps}")
            if re.fullmatch(status, light.request(self.recorded, "state")["status"]):
                break
        return round(time.monotonic() - begin, 2)


def threads(pid: int) -> dict[int, str]:
    """Return the Python threads that py-spy finds: CUPTI's name of each -> its name."""
    command = [py_spy(), "dump", "--pid", str(pid), "--nonblocking", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        return {-1: done.stderr[-300:]}
    return {
        int(thread["thread_id"]) & 0xFFFF_FFFF: thread.get("thread_name") or "" for thread in json.loads(done.stdout)
    }


def abort(pair: Pair) -> None:
    """End a job that hangs: its threads are in its errors then (PYTHONFAULTHANDLER)."""
    light.report("the job hangs: it is aborted")
    for rank in pair.recorded + pair.plain:
        rank.send_signal(signal.SIGABRT)


def measured(pair: Pair, spool: Path) -> None:
    """Run the phases."""
    pair.phase("before")
    kinds: dict[str, dict[str, object]] = {
        "kernels": {}, "launches": {"launches": True}, "launches and stacks": {"launches": True, "stacks": True},
        "samples of the GPU": {"ranks": (0,), "pc": True},
    }  # fmt: skip
    for name, request in kinds.items():
        with window(spool, JOB, **request):
            results[f"s until on: {name}"] = pair.until("on")
            time.sleep(1.5)  # the decoder looks at the request once a second
            light.request(pair.recorded, f"steps {pair.steps}")
            pair.phase(f"in a window: {name}")
            if "stacks" in request:
                results["threads"] = {rank.pid: threads(rank.pid) for rank in pair.recorded}
        results[f"s until off: {name}"] = pair.until("off")
        save()
    pair.until("off")
    time.sleep(3)  # CUPTI goes once its buffers are read
    light.request(pair.recorded, f"steps {pair.steps}")
    pair.phase("after the windows")


def rows(spool: Path, pids: list[int], spans: list[list[int]]) -> dict[int, dict[str, object]]:
    """Return what rows of each process show of its launches. `spans`: begin and end of windows with launches; ns."""
    launches, kernels, known = columns(spool, "gpu.launch.v1"), columns(spool, "gpu.kernel.v1"), processes(spool)
    result: dict[int, dict[str, object]] = {}
    for pid in pids:
        of, ran = launches.get(pid), kernels.get(pid)
        if of is None or ran is None:
            result[pid] = {"launches": 0 if of is None else len(of["start_ns"]), "process": known.get(pid)}
            continue
        inside = np.zeros(len(ran["start_ns"]), bool)
        for begin, end in spans:
            inside |= (ran["start_ns"] >= begin) & (ran["start_ns"] <= end)
        at = {int(number): i for i, number in enumerate(of["correlation"])}
        places = np.array([at.get(int(number), -1) for number in ran["correlation"]])
        has = inside & (places >= 0)
        lags_us = (ran["start_ns"][has] - of["start_ns"][places[has]]) / 1e3
        without = Counter(ran["name"][inside & (places < 0)])
        result[pid] = {
            "kernels in windows": int(inside.sum()), "with a launch": int(has.sum()),
            "with a scope": int((of["scope"][places[has]] != "").sum()),
            "without, by name": without.most_common(5),
            "without, graphs": int((ran["graph"][inside & (places < 0)] > 0).sum()) if "graph" in ran else None,
            "launches": len(of["start_ns"]),
            "launches whose id comes twice": len(of["correlation"]) - len(at),
            "kernel began after its call, us": light.quantiles(lags_us),
            "kernels that began before it": int((lags_us < 0).sum()),
            "call took, us": light.quantiles(of["duration_ns"] / 1e3),
            "threads": Counter(of["thread"].tolist()), "scopes": Counter(scope(text) for text in of["scope"]),
            "stack of": Counter(of["sampled"].tolist()),
            "age of samples, periods": light.quantiles(of["sample_age_ns"][of["sampled"] > 0] / 1e9 / PERIOD_S),
            "callers": Counter(of["caller"].tolist()).most_common(5),
            "process": known.get(pid),
        }  # fmt: skip
    return result


def stalls(spool: Path) -> dict[int, dict[str, object]]:
    """Return what warps of the kernels with most samples waited for, by process."""
    result: dict[int, dict[str, object]] = {}
    for pid, of in columns(spool, "gpu.stall.v1").items():
        by_kernel: dict[str, Counter[str]] = {}
        for name, reason, samples in zip(of["name"], of["reason"], of["samples"].tolist(), strict=True):
            by_kernel.setdefault(name[:100], Counter())[reason] += samples
        most = sorted(by_kernel.items(), key=lambda item: -item[1].total())[:8]
        shares = {
            name: {"samples": reasons.total(), **{r: round(n / reasons.total(), 3) for r, n in reasons.most_common(5)}}
            for name, reasons in most
        }
        result[pid] = {"rows": len(of["start_ns"]), "kernels": len(by_kernel), "most": shares}
    return result


def scope(text: str) -> str:
    return re.sub("[0-9]+", "N", text)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="drumline-deep-") as folder:
        spool = Path(folder) / "spool"
        results["versions"] = light.versions()
        pair = Pair(spool)
        watch = threading.Timer(max(END - time.monotonic() - REST_S / 2, 1), abort, [pair])
        watch.daemon = True
        watch.start()
        try:
            measured(pair, spool)
        except Exception as error:
            results["error"] = f"{type(error).__name__}: {error}"
        watch.cancel()
        save()
        pids = [rank.pid for rank in pair.recorded]
        light.finish(pair.plain + pair.recorded)
        time.sleep(3)
        try:
            spans = [of["span_ns"] for name, of in results["phases"].items() if "launches" in name]
            results["rows"], results["stalls"] = rows(spool, pids, spans), stalls(spool)
            named = results.get("threads", {})
            for pid, of in results["rows"].items():
                matched = {name: named.get(pid, {}).get(name, "not Python's") for name in of.get("threads", ())}
                of["threads as py-spy names them"] = matched
        except Exception as error:
            results["error in rows"] = f"{type(error).__name__}: {error}"
        save()
    shown = {key: value for key, value in results.items() if key != "phases"}
    print(json.dumps(shown, default=str)[:6_000], flush=True)


if __name__ == "__main__":
    main()
