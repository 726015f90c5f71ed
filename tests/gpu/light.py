"""Measure what only two GPUs can show of the light tier, in nine minutes; called by light.sh: light.py OUT [PART...]

Parts: agree (NCCL's plugin against CUPTI in one run), graph, kill, window (what CUPTI costs before, in and after a deep
window), cycles (CUPTI goes and comes back again and again: is a kernel missing?), graphcost (replays of a graph: plain,
light, and light without graphs), launch and gpu (step time under each mode against plain, and recording on against off
in one process). A part that fails is reported, and the next begins. LIGHT_WINDOW_SECONDS: time in which `window` is
repeated. LIGHT_RANKS: 1 for `window` and `cycles` on one GPU.
LIGHT_SECONDS: time for all; `launch` gets what the parts after it leave. LIGHT_MODES, LIGHT_ROUNDS: of launch and gpu;
LIGHT_BLOCKS_S: time of each mode in a round of launch; LIGHT_SETS: rounds of launch whose processes start at once;
LIGHT_PAIRED: 0 leaves out on against off.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from statistics import mean

import numpy as np

from drumline.lab.bench.overhead import ddp, ratios
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.ipc.policy import LIGHT, Policy
from drumline.producers.launcher import LaunchOptions, environment, load_plugin
from drumline.producers.rings.operations import channel_counts
from drumline.producers.rings.ring_file import COMM, FUNCTIONS, HEADER_BYTES, MAX_COMMS, RECORD, HeaderField, Kind
from drumline.producers.spool.location import make_rings
from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model

OUT = Path(sys.argv[1])
JOB = str(Path(__file__).with_name("light_job.py"))
END = time.monotonic() + float(os.environ.get("LIGHT_SECONDS", "500"))
ROUNDS, SETS = int(os.environ.get("LIGHT_ROUNDS", "40")), int(os.environ.get("LIGHT_SETS", "4"))
MODES = os.environ.get("LIGHT_MODES", "plain light").split()
IS_PAIRED = os.environ.get("LIGHT_PAIRED", "1") != "0"
#: Time that a round of `launch` runs each mode for: 160 steps with those that are not timed, so that a light process
#: measures its share of them; s.
BLOCKS_S = float(os.environ.get("LIGHT_BLOCKS_S", "5"))
#: Time in which the processes of several rounds start; s.
START_S = 25
#: Time that parts after `launch` need; s.
RANKS = int(os.environ.get("LIGHT_RANKS", "2"))
WINDOW_S, CYCLES_S = float(os.environ.get("LIGHT_WINDOW_SECONDS", "1")), 75
NEEDED_S = {"agree": 45, "graph": 35, "kill": 35, "window": 125, "graphcost": 40, "gpu": 85}
results: dict[str, object] = {}


def report(text: str) -> None:
    print(f"[{time.monotonic() - END + float(os.environ.get('LIGHT_SECONDS', '500')):5.0f} s] {text}", flush=True)


def start(
    how: str, policy: str, spool: Path, *, plugin: bool = False, graphs: str = "1", **pipes: object
) -> list[subprocess.Popen[str]]:
    """Start both ranks, a half of the cores each. `plugin`: with the ring, also where the policy has none.

    `graphs`: DRUMLINE_RINGS__GRAPHS.
    """
    spool.mkdir(exist_ok=True)
    command = [sys.executable, JOB, how]
    shared = {**os.environ, "WORLD_SIZE": str(RANKS), "STORE_FILE": str(spool / f".store-{time.monotonic_ns()}")}
    shared |= {"DRUMLINE_RINGS__GRAPHS": graphs, "DRUMLINE_RINGS__TIMES": "all"}
    if policy:
        shared = environment(shared, command, LaunchOptions(job=how, run="r", policy=policy, spool=str(spool)))
        shared = load_plugin(shared, Policy(LIGHT)) if plugin else shared
        make_rings(shared)
    cores = sorted(os.sched_getaffinity(0))
    halves = [cores[rank * len(cores) // RANKS : (rank + 1) * len(cores) // RANKS] for rank in range(RANKS)]
    return [
        subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, halves[rank])), *command],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=open(OUT / f"{how}-{policy or 'plain'}{graphs}-{rank}.err", "w"),
            text=True,
            **pipes,
        )
        for rank in range(RANKS)
    ]


def end(ranks: list[subprocess.Popen[str]], seconds: float) -> list[str]:
    """Return what each rank printed; kill what runs longer."""
    try:
        return [rank.communicate(timeout=seconds)[0] for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
        if codes := [rank.returncode for rank in ranks if rank.wait()]:
            report(f"exit codes {codes}: see {OUT}/*.err")


class Ring:
    """The whole ring of a process, as numpy records in the order in which they were written."""

    def __init__(self, spool: Path, pid: int) -> None:
        (path,) = (spool / ".rings").glob(f"{pid}-*.ring")
        data = path.read_bytes()
        self.header = np.frombuffer(data, "<u8", len(HeaderField))
        self.comms = np.frombuffer(data, COMM, MAX_COMMS, HEADER_BYTES)
        records = np.frombuffer(data, RECORD, -1, HEADER_BYTES + MAX_COMMS * COMM.itemsize)
        records = records[records["number"] > 0]
        self.records = records[np.argsort(records["number"])]
        self.operations = self.records[self.records["kind"] == Kind.OPERATION]
        started, self.stopped, drifted = channel_counts(self.operations["progress"])
        is_whole = self.stopped + drifted >= self.operations["channels"]
        self.complete = (self.stopped == started) & (self.stopped > 0) & is_whole

    def facts(self) -> dict[str, int]:
        """Return the header's counts."""
        fields = ("CAPACITY", "WRITTEN", "DROPPED", "UNKNOWN", "COMMS", "INTERFACE", "CHAIN", "CAPTURED", "ENDED")
        return {name.lower(): int(self.header[HeaderField[name]]) for name in fields}

    def marks(self, kind: int) -> np.ndarray:
        """Return the records of a kind of marks."""
        return self.records[self.records["kind"] == kind]


def spool_rows(spool: Path, pid: int, topic: str) -> dict[str, np.ndarray]:
    """Return start, duration and name of the rows of a process in its spool."""
    start_ns, duration_ns, texts = [], [], []
    for identity in spool.glob("*/identity.json"):
        if json.loads(identity.read_text())["process"]["pid"] != pid:
            continue
        for path in sorted([*identity.parent.glob("*.seg"), *identity.parent.glob("*.taken")]):
            for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], True):
                if frame.kind == DATA and frame.topic == topic:
                    batch = decode(model(frame.topic), frame.body)
                    if not batch.rows:
                        continue
                    start_ns += batch.columns["start_ns"].tolist()
                    duration_ns += batch.columns["duration_ns"].tolist()
                    texts += list(batch.strings("name", "names")) if topic == "gpu.kernel.v1" else [""] * batch.rows
    order = np.argsort(start_ns, kind="stable")
    rows = {"start_ns": np.array(start_ns), "duration_ns": np.array(duration_ns), "name": np.array(texts, object)}
    return {key: column[order] for key, column in rows.items()} if len(order) else rows


def agree(work: Path) -> dict[str, object]:
    """Both record one run: is each collective in both, and as long?"""
    spool = work / "agree"
    ranks = start("collectives", "always", spool, plugin=True)
    end(ranks, 90)
    time.sleep(2)
    measured_values = []
    for rank in ranks:
        ring, kernels = Ring(spool, rank.pid), spool_rows(spool, rank.pid, "gpu.kernel.v1")
        is_nccl = nccl.is_kernel(list(kernels["name"]))
        cupti = {key: column[is_nccl] for key, column in kernels.items()}
        operations = ring.operations
        pairs = min(len(operations), len(cupti["name"]))
        functions = [FUNCTIONS[number - 1] for number in operations["function"][:pairs]]
        same = np.array([name in text for name, text in zip(functions, cupti["name"][:pairs], strict=True)], bool)
        took = (operations["gpu_stop_ns"][:pairs] - operations["gpu_start_ns"][:pairs]).astype(np.int64)
        gap_us = np.abs(cupti["duration_ns"][:pairs] - took)[same & ring.complete[:pairs]] / 1e3
        tight = (operations["seen_ns"].astype(np.int64) - operations["gpu_stop_ns"].astype(np.int64))[ring.complete]
        measured_values.append(
            {
                "ring": len(operations),
                "complete": int(ring.complete.sum()),
                "cupti_kernels": len(cupti["name"]),
                "cupti_collective_rows": len(spool_rows(spool, rank.pid, "gpu.collective.v1")["start_ns"]),
                "matched": int(same.sum()),
                "duration_gap_us": quantiles(gap_us),
                "seen_after_stop_us_above_least": quantiles((tight - tight.min()) / 1e3) if len(tight) else None,
                "functions": Counter(functions),
                "header": ring.facts(),
            }
        )
    return {"ranks": measured_values}


def graph(work: Path) -> dict[str, object]:
    """Are all collectives of all replays there, and is their step known?"""
    spool = work / "graph"
    ranks = start("graph", "light", spool)
    end(ranks, 90)
    measured_values = []
    for rank in ranks:
        ring = Ring(spool, rank.pid)
        captured = ring.operations["captured"] > 0
        numbers = ring.operations["captured"][captured].astype(np.int64)
        # A number that is not above the last one begins a new replay.
        replay = np.cumsum(np.diff(numbers, prepend=numbers[:1]) <= 0) - 1 if len(numbers) else numbers
        replays = ring.marks(Kind.GRAPH_REPLAY)
        steps = replays["step"][np.minimum(replay, len(replays) - 1)] if len(replays) else np.empty(0, np.int64)
        per_step = Counter(Counter(steps.tolist()).values())
        measured_values.append(
            {
                "operations": len(ring.operations),
                "captured": int(captured.sum()),
                "captured_complete": int(ring.complete[captured].sum()),
                "plain": int((~captured).sum()),
                "replay_marks": len(replays),
                "replays_seen": int(replay[-1] + 1) if len(replay) else 0,
                "steps_with_n_captured": {int(n): count for n, count in per_step.items()},
                "step_at_event_was_another": int((ring.operations["step"][captured] != steps).sum()),
                "sequences": sorted(Counter(ring.operations["sequence"].tolist()).items())[:8],
                "first_captured": numbers[:8].tolist(),
                "header": ring.facts(),
            }
        )
    return {"ranks": measured_values}


def kill(work: Path) -> dict[str, object]:
    """Does the ring of a rank that is killed hold all that was over 10 ms before?"""
    spool = work / "kill"
    ranks = start("killed", "light", spool)
    lines = []
    until = time.monotonic() + 60
    while time.monotonic() < until and len(lines) < 300:
        line = ranks[1].stdout.readline()
        if not line:
            break
        if line[0].isdigit():
            lines.append(line)
    killed_ns = time.time_ns()
    ranks[1].kill()
    rest = ranks[1].stdout.read()
    ranks[0].kill()
    for rank in ranks:
        rank.wait()
    steps = [tuple(map(int, line.split())) for line in [*lines, *rest.splitlines(True)] if line.endswith("\n")]
    over = [step for step, end_ns in steps if end_ns < killed_ns - 10_000_000]
    ring = Ring(spool, ranks[1].pid)
    complete = Counter(ring.operations["step"][ring.complete].tolist())
    return {
        "steps_over": len(over),
        "missing": sum(20 - complete[step] for step in over),
        "operations": len(ring.records),
        "incomplete_at_the_end": int((~ring.complete).sum()),
        "header": ring.facts(),
    }


def request(ranks: list[subprocess.Popen[str]], line: str) -> dict[str, float]:
    """Write a line to both ranks, "" = nothing, and return the next JSON object of the first."""
    for rank in ranks if line else []:
        rank.stdin.write(line + "\n")
        rank.stdin.flush()
    answers = []
    for rank in ranks:
        while not (answer := rank.stdout.readline()).startswith("{"):
            if not answer:
                raise RuntimeError(f"a rank ended: see {OUT}/*.err")
        answers.append(json.loads(answer))
    return answers[0]


def finish(ranks: list[subprocess.Popen[str]]) -> None:
    """Let ranks that read their standard input end; kill those that do not."""
    for rank in ranks:
        rank.stdin.close()
    for rank in ranks:
        try:
            rank.wait(20)
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def graphcost(work: Path) -> dict[str, object]:
    """Time of a replay of four small all_reduce in a graph; modes in turn."""
    spool = work / "graphcost"
    modes = {"plain": ("", "1"), "light": ("light", "1"), "light, graphs 0": ("light", "0")}
    ranks: dict[str, list[subprocess.Popen[str]]] = {}
    us: dict[str, list[float]] = {mode: [] for mode in modes}
    operations: dict[str, float] = {}
    try:
        for mode, (policy, graphs) in modes.items():
            ranks[mode] = start("graphcost", policy, spool, graphs=graphs, stdin=subprocess.PIPE)
        for mode in modes:
            request(ranks[mode], "")
        for number in range(8):
            for mode in list(modes)[:: -1 if number % 2 else 1]:
                answer = request(ranks[mode], "300")
                us[mode].append(round(answer["us"], 2))
                operations[mode] = answer["records_a_replay"]
    finally:
        finish([rank for both in ranks.values() for rank in both])
    return {
        mode: {"us_a_replay": float(np.median(us[mode])), "all": us[mode], "records": operations[mode]}
        for mode in modes
    }


def window(work: Path) -> dict[str, object]:
    """Step time of a launch-bound DDP job before a deep window, in it, after it, and when CUPTI is gone."""
    spool, measured_values = work / f"window-{time.monotonic_ns()}", {}
    plain = start("window", "", spool, stdin=subprocess.PIPE)
    recorded = start("window", "auto", spool, stdin=subprocess.PIPE)

    try:
        for ranks in (plain, recorded):
            request(ranks, "")
        steps = max(6, int(0.25e3 / request(plain, "steps 30")["ms"]))

        def phase(name: str) -> None:
            blocks = []
            for number in range(24):
                order = (plain, recorded) if number % 2 else (recorded, plain)
                pair = [request(ranks, f"steps {steps}") for ranks in order]
                blocks.append(pair if number % 2 else pair[::-1])
            ms = [[block["median_ms"] for block in pair] for pair in blocks]
            ratio, half = ratios.mean_ratio([b for _, b in ms], [a for a, _ in ms])
            measured_values[name] = {
                "ratio": round(ratio, 4),
                "+-": round(half, 4),
                "ms": np.round(ms, 3).tolist(),
                "cpu_ms": np.round([[block["cpu_ms"] for block in pair] for pair in blocks], 2).tolist(),
                **request(recorded, "state"),
            }
            report(f"window: {name}: {ratio:.3f} +- {half:.3f} of plain, {measured_values[name]['status']}")

        def until_status(status: str) -> None:
            for _ in range(25):
                request(recorded, f"steps {steps}")
                if request(recorded, "state")["status"] == status:
                    return

        phase("before")
        (spool / "policy").write_text("always\n")
        until_status("on")
        phase("in the window")
        (spool / "policy").unlink()
        until_status("off")
        phase("after, one kind left on")
        measured_values["closed"] = request(recorded, "closed")
        phase("after, all off")
        measured_values["finalized"] = request(recorded, "finalized")
        phase("after cuptiFinalize")
    except Exception as error:
        measured_values["error"] = f"{type(error).__name__}: {error}"
    finish(plain + recorded)
    return measured_values


def windows(work: Path) -> dict[str, object]:
    """Step time in and after a window, relative to that before it, of the same two processes."""
    rounds: list[dict[str, object]] = []
    until = time.monotonic() + WINDOW_S
    while not rounds or time.monotonic() < until:
        rounds.append(window(work))
    complete = [r for r in rounds if "error" not in r]
    names = [name for name, value in complete[0].items() if "ratio" in value and name != "before"] if complete else []
    relative = {name: [r[name]["ratio"] / r["before"]["ratio"] for r in complete] for name in names}
    means = {name: np.round(ratios.mean_ratio(v, [1.0] * len(v)), 4).tolist() for name, v in relative.items()}
    return {"relative to before, +-": means, "each": relative, "rounds": rounds}


def cycles(work: Path) -> dict[str, object]:
    """CUPTI on, off and gone again and again, in the thread that steps and in another one beside it."""
    out: dict[str, object] = {}
    for thread in ("same", "other"):
        os.environ |= {"CYCLE_THREAD": thread, "CYCLE_SECONDS": str(CYCLES_S)}
        spool = work / f"cycles-{thread}"
        ranks = start("cycles", "always", spool)
        lines = end(ranks, CYCLES_S + 120)[0].splitlines()
        time.sleep(3)
        rows = json.loads(lines[-1])["rows"]
        at = np.sort(spool_rows(spool, ranks[0].pid, "gpu.kernel.v1")["start_ns"])
        kernels = [int(np.searchsorted(at, row["off"]) - np.searchsorted(at, row["on"])) for row in rows]
        out[thread] = {"results": Counter(row["result"] for row in rows), "kernels in each": Counter(kernels)}
        report(f"cycles, {thread} thread: {out[thread]}")
    return out


def overhead(
    work: Path, workload: str, modes: list[str], rounds: int, seconds: float, until: float, sets: int = 1
) -> dict[str, object]:
    """Step time of each mode against plain, rounds in turn; and recording on against off, within processes."""
    total: ratios.Rounds = {workload: {mode: [] for mode in [*modes, *[ratios.PAIRED] * ("light" in modes)]}}
    versions, errors, took = {}, [], 0.0
    number = 0
    while number < rounds and len(errors) < 4 and sets and time.monotonic() < until:
        begin, folder = time.monotonic(), work / f"{workload}-{number}-{len(errors)}"
        folder.mkdir()
        try:
            measured, versions = ddp.measure_ddp(
                1, seconds, modes, [workload], folder, report, number, sets, paired=IS_PAIRED
            )
        except Exception as error:  # a port that was taken, say: the next round takes another one
            errors.append(f"round {number}: {type(error).__name__}: {error}"[:400])
            report(errors[-1])
            continue
        for mode, values in total[workload].items():
            values += measured[workload].get(mode, [])
        number += sets
        elapsed = time.monotonic() - begin
        took = max(took, (elapsed - START_S) / sets, elapsed / 2 / sets)
        sets = max(0, min(sets, rounds - number, int((until - time.monotonic() - START_S) / took)))
        (OUT / f"{workload}.json").write_text(json.dumps(total))
        report(f"{workload}, {number} rounds: {summary(total[workload], modes)}")
    return {"versions": versions, "errors": errors, "rounds": total[workload], **summary(total[workload], modes)}


def summary(rounds: dict[str, list[dict[str, float]]], modes: list[str]) -> dict[str, dict[str, float]]:
    """Return each mode's means and its ratio to plain with the 95 % interval, and those of recording on to off."""
    texts = {"ratio": "above_plain_%", "mean_ratio": "above_plain_by_means_%"}
    measured_values = {}
    for mode, values in rounds.items():
        if not values:
            continue
        row = {"rounds": len(values), **{key: round(mean(v[key] for v in values), 3) for key in values[0]}}
        for key, text in texts.items() if mode in modes else [("ratio", "above_off_%")]:
            ratio, half = ratios.mean_ratio([v[key] for v in values], [1.0] * len(values))
            row |= {text: round(100 * (ratio - 1), 2), f"{text} +-": round(100 * half, 2)}
        measured_values[mode] = row
    return measured_values


def quantiles(values: np.ndarray) -> dict[str, float] | None:
    """Return median, p99 and the largest."""
    if not len(values):
        return None
    return {name: round(float(np.quantile(values, q)), 2) for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1))}


def versions() -> dict[str, str]:
    """Return the versions that the results depend on."""
    probe = (
        "import torch, ctypes; torch.zeros(1).cuda(); n = ctypes.c_uint32();"
        "p = next((l.split()[-1] for l in open('/proc/self/maps') if 'libcupti' in l), '');"
        "p and ctypes.CDLL(p).cuptiGetVersion(ctypes.byref(n));"
        "print(torch.__version__, torch.version.cuda, '.'.join(map(str, torch.cuda.nccl.version())), n.value)"
    )
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    plain = {**os.environ, "DRUMLINE_ATTACH": "0"}
    torch = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, env=plain, check=False)
    try:
        cards = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split("\n")
    except OSError as error:
        cards = [str(error)]
    cores = len(os.sched_getaffinity(0))
    return {
        "torch, CUDA, NCCL, CUPTI": torch.stdout.strip() or torch.stderr[-300:],
        "GPU": cards[0],
        "cores": str(cores),
    }


def main() -> None:
    wanted = sys.argv[2:] or ["agree", "graph", "kill", "graphcost", "window", "launch", "gpu"]
    after_launch = sum(NEEDED_S[part] for part in wanted[wanted.index("launch") + 1 :]) if "launch" in wanted else 0
    with tempfile.TemporaryDirectory(prefix="drumline-light-") as folder:
        work = Path(folder)
        parts = {
            "agree": lambda: agree(work),
            "graph": lambda: graph(work),
            "kill": lambda: kill(work),
            "window": lambda: windows(work),
            "cycles": lambda: cycles(work),
            "graphcost": lambda: graphcost(work),
            "launch": lambda: overhead(
                work, "ddp_launch_bound", MODES, ROUNDS, BLOCKS_S, END - 15 - after_launch, SETS
            ),
            "gpu": lambda: overhead(work, "ddp_gpu_bound", [m for m in MODES if m != "drumline"], 5, 4, END - 25),
        }
        for name, part in {"versions": versions, **{name: parts[name] for name in wanted}}.items():
            report(f"== {name}")
            try:
                results[name] = part()
            except Exception as error:
                traceback.print_exc()
                results[name] = {"error": f"{type(error).__name__}: {error}"[:600]}
            (OUT / "light.json").write_text(json.dumps(results, indent=1, default=str))
            report(json.dumps(short(results[name]), default=str)[:3000])
    print("== summary")
    print(json.dumps({name: short(part) for name, part in results.items()}, default=str))


def short(part: object) -> object:
    """Return a part's result without the single rounds."""
    drop = re.compile(r"rounds|ms\b|cpu_ms\b")
    if isinstance(part, dict) and "rounds" in part:
        return {key: value for key, value in part.items() if key != "rounds"}
    if isinstance(part, dict) and any(isinstance(value, dict) and "ratio" in value for value in part.values()):
        return {
            key: {k: v for k, v in value.items() if not drop.fullmatch(k)} if isinstance(value, dict) else value
            for key, value in part.items()
        }
    return part


if __name__ == "__main__":
    main()
