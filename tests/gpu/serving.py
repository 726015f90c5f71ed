"""Measure the recording of an inference engine; called by serving.sh: serving.py OUT [PART...]

Parts, each with a time of its own: serve (an HTTP load of mixed lengths with a caller's trace on `transformers serve`,
a deep window in it, and the kernels of one request), gpu and launch (throughput and time a token with recording on
and off by turns in one process, then the iterations' GPU time beside CUPTI's, of an engine bound by the GPU and of
one bound by launches), adapters (an engine of one's own: which adapter is dear), faults (a scheduler and a tokenizer
that sleep), ranks (tensor parallelism on two GPUs: rank 1 late by a fifth of each iteration, then healthy for
SERVING_HEALTHY_S). Without names: all but ranks. A part that fails is reported, and the next begins.
SERVING_SECONDS: time for all. SERVING_REQUESTS: of the HTTP load. serve, adapters and faults leave their spools in
OUT, which `drumline agent --until-empty` publishes where Kafka is.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from http.client import HTTPConnection
from pathlib import Path
from queue import Empty, Queue
from statistics import mean

import numpy as np
from deep_rows import columns, processes, window
from serving_rows import attributed, batches_of, counts, phases, rows_of

from drumline.producers.launcher import LaunchOptions, environment
from drumline.producers.rings.host_rings import RingFolder
from drumline.producers.spool.location import make_rings, rings_folder
from drumline.producers.spool.quota import SpoolLimits
from drumline.streams import offline
from drumline.streams.core.thresholds import StragglerConfig

OUT = Path(sys.argv[1])
FOLDER = Path(__file__).parent
JOB, ENGINE = str(FOLDER / "serving_job.py"), str(FOLDER / "serving_engine.py")
TINY = str(FOLDER.parent / "support" / "real_engine.py")
SECONDS = float(os.environ.get("SERVING_SECONDS", "520"))
BEGAN = time.monotonic()
REQUESTS, AT_ONCE = int(os.environ.get("SERVING_REQUESTS", "2000")), 48
HEALTHY_S = float(os.environ.get("SERVING_HEALTHY_S", "35"))
#: Length of the deep window; longest time of each part; s.
WINDOW_S = 2.0
PART_S = {"serve": 175, "gpu": 140, "launch": 95, "adapters": 35, "faults": 95, "ranks": 240}
#: Requests to one server: transformers 5.17 stops answering after 800 to 1,000, recorded or not.
OF_SERVER = 500
#: A word of every prompt: no spool may have it.
PLANTED = "zanzibar"
results: dict[str, object] = {}


def report(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def keep(name: str, value: object) -> None:
    """Report a result, and write all there are."""
    results[name] = value
    report(f"{name}: {json.dumps(value, default=str)}")
    (OUT / "serving.json").write_text(json.dumps(results, indent=1, default=str))


def left() -> float:
    return SECONDS - (time.monotonic() - BEGAN)


def pack(spool: Path, name: str) -> None:
    """Put a spool into OUT."""
    with tarfile.open(OUT / f"{name}.tar.xz", "w:xz", preset=3) as tar:
        tar.add(spool, arcname=name, filter=lambda entry: entry if entry.isfile() or entry.isdir() else None)


def start(name: str, command: list[str], spool: Path, **more: str) -> subprocess.Popen[str]:
    """Start a recorded program."""
    spool.mkdir(exist_ok=True)
    shared = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **more}
    shared = environment(shared, command, LaunchOptions(job=name, run=name, policy="auto", spool=str(spool)))
    make_rings(shared)
    return subprocess.Popen(
        command, env=shared, stdout=subprocess.PIPE, stderr=open(OUT / f"{name}.err", "a"), text=True
    )


def end(program: subprocess.Popen[str]) -> None:
    program.terminate()
    try:
        program.wait(20)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def lines(program: subprocess.Popen[str], seconds: float) -> list[dict[str, object]]:
    """Report the lines of JSON that a program prints, and return them; it is ended when the time is over."""
    queue: Queue[str | None] = Queue()
    until, printed = time.monotonic() + seconds, []

    def read() -> None:
        for line in program.stdout:
            queue.put(line)
        queue.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = queue.get(timeout=max(until - time.monotonic(), 0.1))
        except Empty:
            report("ended: its time is over")
            break
        if line is None:
            break
        report(line.strip()[:600])
        if line.startswith("{"):
            printed.append(json.loads(line))
    if program.poll() is None:
        try:
            program.wait(10)
        except subprocess.TimeoutExpired:
            end(program)
    return printed


class Served:
    """`transformers serve` below `drumline run`, and an HTTP load on it."""

    def __init__(self, folder: Path, spool: Path) -> None:
        self.model = folder / "tiny"
        subprocess.run([sys.executable, TINY, "model", str(self.model)], check=True, stdout=subprocess.DEVNULL)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        code = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
        options = ["--continuous-batching", "--host", "127.0.0.1", "--port", str(self.port)]
        options += ["--cb-block-size", "64", "--cb-num-blocks", "512", "--cb-max-batch-tokens", "512"]
        self.program = start("serve", [sys.executable, "-c", code, "serve", str(self.model), *options], spool)
        self.statuses: list[int] = []
        self.first = ""

    def wait(self, until: float) -> None:
        """Wait for the first answer. Raises OSError."""
        while True:
            try:
                self.post(HTTPConnection("127.0.0.1", self.port, timeout=90), f"00-{1 << 127:032x}-{1:016x}-01", 4, 4)
                return
            except OSError:
                if time.monotonic() > until or self.program.poll() is not None:
                    report(f"serve does not answer; its exit code is {self.program.poll()}")
                    raise
                time.sleep(0.5)

    def post(self, connection: HTTPConnection, trace: str, length: int, tokens: int) -> None:
        body = json.dumps({"model": str(self.model), "prompt": f"{PLANTED} " * length, "max_tokens": tokens})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "traceparent": trace})
        answer = connection.getresponse()
        text = answer.read().decode()
        self.statuses.append(answer.status)
        self.first = self.first or text[:200]

    def load(self, traces: list[str], until: float) -> None:
        """Send a request a trace, of mixed lengths, AT_ONCE at a time, until the time is over."""
        rng, lock = random.Random(7), threading.Lock()
        todo = [(trace, rng.randint(1, 60), rng.randint(2, 12)) for trace in traces[::-1]]

        def client() -> None:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
            while time.monotonic() < until:
                with lock:
                    if not todo:
                        return
                    request = todo.pop()
                try:
                    self.post(connection, *request)
                except OSError:
                    self.statuses.append(-1)
                    connection.close()

        clients = [threading.Thread(target=client) for _ in range(AT_ONCE)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()


def serve_part(folder: Path, seconds: float) -> None:
    """Send requests with a caller's trace to `transformers serve`, and open a deep window among them."""
    spool, until = folder / "spool-serve", time.monotonic() + seconds - 30
    traces = [f"00-{n + 1:032x}-{n + 1:016x}-01" for n in range(REQUESTS)]
    statuses: list[int] = []
    took = 0.0
    for begin in range(0, REQUESTS, OF_SERVER):
        served = Served(folder, spool)
        try:
            served.wait(until)
            report(f"serve: the first answer is there: {served.first}")
            began = time.monotonic()
            load = threading.Thread(target=served.load, args=(traces[begin : begin + OF_SERVER], until))
            load.start()
            if not begin:
                while load.is_alive() and len(served.statuses) < OF_SERVER // 4:
                    time.sleep(0.05)
                opened = time.monotonic()
                with window(spool, "serve"):
                    while load.is_alive() and time.monotonic() < opened + 12 and not columns(spool, "gpu.kernel.v1"):
                        time.sleep(0.2)
                    first = time.monotonic() - opened
                    recorded_ns = time.time_ns()
                    time.sleep(WINDOW_S)
                closed_ns = time.time_ns()
            load.join()
            took += time.monotonic() - began
            time.sleep(2)
        finally:
            end(served.program)
        statuses += served.statuses
        if time.monotonic() > until - 15:
            break
    time.sleep(2)
    requests, iterations = rows_of(spool, "gpu.request.v1"), rows_of(spool, "gpu.iteration.v1")
    texts = [path.read_bytes() for path in spool.rglob("*") if path.is_file()]
    keep("serve", {
        "statuses": counts(statuses), "first": served.first, "seconds": round(took, 1),
        "request_rows": len(requests),
        "rows_with_their_trace": len({row["traceparent"] for row in requests} & set(traces)),
        "outcomes": counts(row["outcome"] for row in requests), "models": counts(row["model"] for row in requests),
        "s_until_kernels": round(first, 2), "files_with_planted_word": sum(PLANTED.encode() in text for text in texts),
        **attributed(requests, iterations), "phases": phases(iterations),
        "phases_in_the_window": phases([row for row in iterations if recorded_ns <= int(row["start_ns"]) < closed_ns]),
        "processes": processes(spool),
    })  # fmt: skip
    keep("kernels of a request", kernels_of_a_request(spool, requests, iterations))
    pack(spool, "serve")


def kernels_of_a_request(
    spool: Path, requests: list[dict[str, object]], iterations: list[dict[str, object]]
) -> dict[str, object]:
    """Return which request has most kernels in the deep window, between begin and end of its iterations."""
    starts = np.sort(np.concatenate([of["start_ns"] for of in columns(spool, "gpu.kernel.v1").values()] or [[]]))
    if not starts.size:
        return {"kernels": 0}
    spans = np.array([[row["start_ns"], row["start_ns"] + row["duration_ns"]] for row in iterations])
    counted = np.searchsorted(starts, spans[:, 1]) - np.searchsorted(starts, spans[:, 0])
    best, most = "", 0
    for row in requests:
        low, high = int(row["start_ns"]), int(row["start_ns"]) + int(row["duration_ns"])
        kernels = int(counted[(spans[:, 0] >= low) & (spans[:, 1] <= high)].sum())
        if kernels > most:
            best, most = str(row["traceparent"]), kernels
    return {"kernels": len(starts), "in_iterations": int(counted.sum()), "trace": best, "its_kernels": most}


def engine_part(size: str, folder: Path, seconds: float) -> None:
    """Compare loads with recording on and off in one process, and GPU time with CUPTI's."""
    spool = folder / f"spool-{size}"
    printed = lines(start(size, [sys.executable, ENGINE, "overhead", size, str(seconds - 25)], spool), seconds)
    pairs = [line for line in printed if "pair" in line]
    ratios: dict[str, object] = {"pairs": len(pairs)}
    for key in ("tokens_per_s", "tpot_ms", "tpot_median_ms", "ttft_ms") if len(pairs) > 1 else ():
        logs = np.log([[pair[name][key] for name in ("recorded", "plain")] for pair in pairs])
        ratios[key] = interval(logs[:, 0] - logs[:, 1])
        ratios[f"{key} plain"] = round(float(np.exp(logs[:, 1].mean())), 3)
        ratios[f"{key} varies by"] = round(float(logs[:, 1].std()), 4)
    keep(f"{size}: recorded above plain, %", ratios)
    time.sleep(2)
    iterations = rows_of(spool, "gpu.iteration.v1")
    result = {**attributed(rows_of(spool, "gpu.request.v1"), iterations), "phases": phases(iterations)}
    for cupti in (line["busy"] for line in printed if "busy" in line):
        low, high = int(cupti["began_ns"]), int(cupti["ended_ns"])
        inside = [int(row["gpu_ns"]) for row in iterations if low <= int(row["start_ns"]) < high]
        result |= {"cupti": cupti, "its_iterations": len(inside), "without_gpu_time": sum(ns < 0 for ns in inside)}
        spent = sum(ns for ns in inside if ns >= 0)
        result["events_above_cupti_percent"] = round(100 * (spent / max(cupti["busy_ns"], 1) - 1), 3)
    keep(f"{size}: GPU time", result)


def interval(logs: np.ndarray) -> dict[str, float]:
    """Return the mean of log ratios and its 95 % interval by bootstrap, in percent."""
    rng = np.random.default_rng(7)
    means = logs[rng.integers(0, len(logs), (10_000, len(logs)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return {name: round(100 * float(np.expm1(value)), 3)
            for name, value in (("mean", logs.mean()), ("low", low), ("high", high))}  # fmt: skip


def faults_part(folder: Path, seconds: float) -> None:
    """Run loads with a fault each; verdicts by the minute need Kafka and ClickHouse, to which the spools go."""
    for fault in ("scheduler", "tokenizer", "healthy"):
        spool = folder / f"spool-{fault}"
        printed = lines(start(fault, [sys.executable, ENGINE, fault, "gpu", str(seconds / 3 - 3)], spool), seconds / 3)
        time.sleep(1)
        rows = rows_of(spool, "gpu.iteration.v1")
        began = next((int(line["from_ns"]) for line in printed if "from_ns" in line), 0)
        keep(f"fault {fault}", phases([row for row in rows if int(row["start_ns"]) >= began]))
        pack(spool, fault)


def adapters_part(folder: Path, seconds: float) -> None:
    """Cost of each adapter a token: iterations with it against those without, by tokens."""
    spool = folder / "spool-adapters"
    program = start("adapters", [sys.executable, JOB, "adapters"], spool)
    answer = program.communicate(timeout=seconds)[0]
    time.sleep(2)
    requests, iterations = rows_of(spool, "gpu.request.v1"), rows_of(spool, "gpu.iteration.v1")
    names = sorted({str(row["adapter"]) for row in requests})
    timed = [row for row in iterations if int(row["gpu_ns"]) >= 0] or iterations
    key = "gpu_ns" if int(timed[0]["gpu_ns"]) >= 0 else "duration_ns"
    tokens = np.zeros((len(timed), len(names)))
    for at, row in enumerate(timed):
        for part in str(row["adapters"]).split(","):
            name, _, count = part.rpartition("=")
            if name in names:
                tokens[at, names.index(name)] = int(count)
    solved = np.linalg.lstsq(tokens, np.array([float(row[key]) for row in timed]), rcond=None)[0]
    shares: dict[str, list[float]] = defaultdict(list)
    for row in requests:
        shares[str(row["adapter"])].append(float(row["gpu_ns"]) / max(int(row["output_tokens"]), 1))
    keep("adapters", {
        "job": answer.strip(), "requests": len(requests), "iterations": len(iterations), "time": key,
        "us_per_token_by_regression": {name: round(float(ns) / 1e3, 2) for name, ns in zip(names, solved, strict=True)},
        "us_per_token_by_shares": {name: round(mean(values) / 1e3, 2) for name, values in shares.items()},
    })  # fmt: skip
    pack(spool, "adapters")


def later(rounds: list[int] = [0]) -> float:  # noqa: B006
    """Return a clock by which each round of a RingFolder is due."""
    rounds[0] += 10
    return float(rounds[0])


def ranks_part(folder: Path, seconds: float) -> None:
    """Run tensor parallelism on two ranks, healthy and with rank 1 late, and evaluate what an agent would publish."""
    subprocess.run([sys.executable, JOB, "model", str(folder / "model")], check=True, stdout=subprocess.DEVNULL)
    for name, late, seconds in (("ranks-late", 1, 35.0), ("ranks-healthy", -1, HEALTHY_S)):
        spool = folder / f"spool-{name}"
        command = ["torchrun", "--nproc-per-node", "2", "--standalone", JOB, "ranks", str(folder / "model"), str(late)]
        command = [sys.executable, "-m", "torch.distributed.run", *command[1:]]
        program = start(name, command, spool, DRUMLINE_RINGS__RECORDS=str(1 << 20), SERVING_RANKS_S=str(seconds))
        try:
            answer = program.communicate(timeout=min(85 + seconds, max(left() - 20, 30)))[0]
        finally:
            if program.poll() is None:
                end(program)
        rings = RingFolder(rings_folder({"DRUMLINE_SPOOL__ROOT": str(spool)}), spool, SpoolLimits(), later)
        until = time.monotonic() + 25
        while time.monotonic() < until:
            rings.round(time.time_ns())
            if rings.is_empty:
                break
        printed = batches_of(spool, "gpu.collective.v1", "gpu.step.v1")
        batches = [(int(batch.envelope["sent_ns"]), batch) for batch in printed]
        batches.sort(key=lambda pair: pair[0])
        named: dict[str, int] = defaultdict(int)
        first: dict[str, int] = {}
        for batch in offline.verdicts(batches, StragglerConfig()):
            for at in range(batch.rows):
                cause = batch.strings("cause", "causes").tolist()[at]
                key = f"rank {int(batch.columns['rank'][at])} {cause} severity {int(batch.columns['severity'][at])}"
                named[key] += 1
                first.setdefault(key, int(batch.envelope["first_step"]))
        iterations = rows_of(spool, "gpu.iteration.v1")
        keep(name, {
            "job": answer.strip().splitlines()[-2:], "rings_left": not rings.is_empty, "batches": len(batches),
            "verdicts": dict(named), "first_step": first, "iterations": len(iterations),
            "roles": counts(row["role"] for row in iterations), "request_rows": len(rows_of(spool, "gpu.request.v1")),
        })  # fmt: skip
        rings.close()


PARTS = {
    "serve": serve_part, "gpu": lambda *arguments: engine_part("gpu", *arguments),
    "launch": lambda *arguments: engine_part("launch", *arguments), "adapters": adapters_part,
    "faults": faults_part, "ranks": ranks_part,
}  # fmt: skip


def main() -> int:
    OUT.mkdir(exist_ok=True, parents=True)
    wanted, failed = sys.argv[2:] or [name for name in PARTS if name != "ranks"], 0
    with tempfile.TemporaryDirectory(dir="/var/tmp" if os.access("/var/tmp", os.W_OK) else None) as path:
        for name in wanted:
            if left() < 30:
                report(f"{name}: no time left")
                continue
            report(f"== {name}")
            try:
                PARTS[name](Path(path), min(PART_S[name], left() - 5))
            except Exception:
                failed += 1
                keep(f"{name} failed", traceback.format_exc())
    return failed


if __name__ == "__main__":
    sys.exit(main())
