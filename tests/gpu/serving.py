"""Measure the recording of an inference engine; called by serving.sh: serving.py OUT [PART...]

Parts: load (an HTTP load on two servers in turn, one of them recorded: throughput, TPOT, and whether each request has
its row), serve (requests with a caller's trace to `transformers serve`), busy (the iterations' GPU time beside
CUPTI's), adapters (an engine of one's own: which adapter is dear), ranks (tensor parallelism on two GPUs: rank 1 late
by a fifth of each iteration, then healthy for SERVING_HEALTHY_S), pairs and graphs (rounds of the same requests in one
process, with the adapter and without it, and iterations beside CUPTI: of a model that computes long, and of one in
CUDA graphs), deep (`transformers serve` with CUPTI all the time). A part that fails is reported, and the next begins.
SERVING_SECONDS: time for all. SERVING_ROUNDS: pairs of loads; SERVING_REQUESTS: of a load; SERVING_TRACES: requests
with a trace; SERVING_PAIRS_S: time of pairs and of graphs. Spools of serve and deep are left in OUT.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from http.client import HTTPConnection
from pathlib import Path
from statistics import mean, median

import numpy as np

from drumline.lab.bench.overhead.ratios import mean_ratio
from drumline.producers.launcher import LaunchOptions, environment
from drumline.producers.rings.host_rings import RingFolder
from drumline.producers.spool.location import make_rings, rings_folder
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, scan
from drumline.schemas.batch import decode
from drumline.schemas.model import model
from drumline.streams import offline
from drumline.streams.core.thresholds import StragglerConfig

OUT = Path(sys.argv[1])
JOB = str(Path(__file__).with_name("serving_job.py"))
ENGINE = Path(__file__).parents[1] / "support" / "real_engine.py"
SECONDS = float(os.environ.get("SERVING_SECONDS", "460"))
BEGAN = time.monotonic()
ROUNDS, REQUESTS = int(os.environ.get("SERVING_ROUNDS", "16")), int(os.environ.get("SERVING_REQUESTS", "250"))
AT_ONCE, TOKENS = int(os.environ.get("SERVING_AT_ONCE", "64")), 8_192
HEALTHY_S = float(os.environ.get("SERVING_HEALTHY_S", "35"))
TRACES, PAIRS_S = int(os.environ.get("SERVING_TRACES", "2000")), float(os.environ.get("SERVING_PAIRS_S", "90"))
#: Servers are started anew after so many pairs: no process is fast or slow by chance for all of them.
PAIRS_OF_SERVERS = 4
#: Time that parts after `load` need; s.
NEEDED_S = {"serve": 60, "busy": 30, "adapters": 45, "ranks": 150}  # of a call without parts
results: dict[str, object] = {}


def report(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def left() -> float:
    return SECONDS - (time.monotonic() - BEGAN)


def start(
    name: str, command: list[str], spool: Path | None, policy: str = "auto", **more: str
) -> subprocess.Popen[str]:
    """Start a program of serving_job.py; `spool`: it is recorded."""
    shared = {**os.environ, "TOKENIZERS_PARALLELISM": "false", **more}
    if spool is not None:
        spool.mkdir(exist_ok=True)
        options = LaunchOptions(job=name, run=name, policy=policy, spool=str(spool))
        shared = environment(shared, command, options)
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


def rows_of(spool: Path, topic: str) -> list[dict[str, object]]:
    """Return the rows of a topic in a spool, with texts for indices."""
    rows: list[dict[str, object]] = []
    record = model(topic)
    for path in sorted([*spool.glob("*/*.seg"), *spool.glob("*/*.taken")]):
        for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], True):
            if getattr(frame, "kind", None) != DATA or frame.topic != topic:
                continue
            batch = decode(record, frame.body)
            columns = {
                c.name: batch.strings(c.name, c.dictionary).tolist() if c.dictionary else batch.columns[c.name].tolist()
                for c in record.columns
            } if batch.rows else {}  # fmt: skip
            rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows


class Server:
    """A server of serving_job.py, plain or recorded."""

    def __init__(self, name: str, folder: Path, spool: Path | None) -> None:
        port_file = folder / f"{name}-{time.monotonic_ns()}.port"
        self.name = name
        self.program = start(name, [sys.executable, JOB, "server", str(folder / "model"), str(port_file)], spool)
        until = time.monotonic() + 120
        while not port_file.exists():
            if self.program.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"server {name} does not start: see {name}.err")
            time.sleep(0.1)
        self.port = int(port_file.read_text())

    def post(self, path: str, body: dict[str, object], connection: HTTPConnection | None = None) -> dict[str, object]:
        connection = connection or HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())

    def load(self, seed: int, requests: int) -> tuple[float, list[dict[str, object]]]:
        """Send requests of mixed lengths, AT_ONCE at a time; return tokens a second and the answers."""
        rng = random.Random(seed)
        todo = [(rng.randint(16, 512), rng.randint(16, 160)) for _ in range(requests)]
        answers: list[dict[str, object]] = []
        lock = threading.Lock()

        def client() -> None:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=300)
            while True:
                with lock:
                    if not todo:
                        return
                    size, count = todo.pop()
                tokens = [(size * 31 + k) % TOKENS for k in range(size)]
                answer = self.post("/generate", {"tokens": tokens, "count": count}, connection)
                with lock:
                    answers.append(answer)

        began = time.perf_counter()
        clients = [threading.Thread(target=client) for _ in range(AT_ONCE)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        seconds = time.perf_counter() - began
        return sum(int(answer["tokens"]) for answer in answers) / seconds, answers


def load_part(folder: Path) -> None:
    """Alternate loads on a plain and a recorded server; each pair has the same requests."""
    spool = folder / "spool-load"
    values: dict[str, list[dict[str, float]]] = {"plain": [], "recorded": []}
    sent = 0
    servers: list[Server] = []
    reserve = sum(NEEDED_S.values()) if not sys.argv[2:] else 15
    for pair in range(ROUNDS):
        if left() < reserve + 20:
            report(f"no time left after {pair} pairs")
            break
        if pair % PAIRS_OF_SERVERS == 0:
            for server in servers:
                end(server.program)
            servers = [Server("plain", folder, None), Server("recorded", folder, spool)]
            for server in servers:
                sent += server.load(1_000 + pair, REQUESTS // 4)[1].__len__() * (server.name == "recorded")
        for server in servers if pair % 2 == 0 else servers[::-1]:
            per_s, answers = server.load(pair, REQUESTS)
            sent += len(answers) * (server.name == "recorded")
            tpot = [float(answer["tpot"]) for answer in answers]
            values[server.name].append({
                "tokens_per_s": per_s, "tpot_ms": 1e3 * mean(tpot), "tpot_median_ms": 1e3 * median(tpot),
                "ttft_ms": 1e3 * mean(float(answer["ttft"]) for answer in answers),
            })  # fmt: skip
        last = {name: {key: round(value, 3) for key, value in rounds[-1].items()} for name, rounds in values.items()}
        report(f"pair {pair}: {json.dumps(last)}")
    for server in servers:
        end(server.program)
    time.sleep(2)
    ratios = {}
    for key in ("tokens_per_s", "tpot_ms", "tpot_median_ms", "ttft_ms"):
        ratio, half = mean_ratio([v[key] for v in values["recorded"]], [v[key] for v in values["plain"]])
        ratios[key] = {"percent": round(100 * (ratio - 1), 3), "half_interval": round(100 * half, 3)}
    requests, iterations = rows_of(spool, "gpu.request.v1"), rows_of(spool, "gpu.iteration.v1")
    timed = [row for row in iterations if row["gpu_ns"] >= 0]
    gpu = sum(int(row["gpu_ns"]) for row in timed)
    shared = sum(max(int(row["gpu_ns"]), 0) for row in requests)
    results["load"] = {
        "rounds": values, "recorded_above_plain": ratios, "requests_sent": sent, "request_rows": len(requests),
        "outcomes": _counts(row["outcome"] for row in requests), "iterations": len(iterations),
        "iterations_with_gpu_time": len(timed), "gpu_s": gpu / 1e9, "gpu_s_of_requests": shared / 1e9,
        "unattributed_percent": round(100 * (1 - shared / gpu), 4) if gpu else None, "phases": _phases(iterations),
    }  # fmt: skip
    report(f"load: {json.dumps({k: v for k, v in results['load'].items() if k != 'rounds'})}")


def _counts(values: object) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for value in values:
        counts[str(value)] += 1
    return dict(counts)


def _phases(rows: list[dict[str, object]]) -> dict[str, dict[str, float]]:
    """Return by phase: iterations, mean ms on the host and the GPU, mean idle ms of the GPU before them."""
    phases: dict[str, dict[str, float]] = {}
    for phase in sorted({str(row["phase"]) for row in rows}):
        part = [row for row in rows if row["phase"] == phase]
        names = ("duration_ns", "gpu_ns", "gpu_idle_ns")
        columns = {name: np.array([int(row[name]) for row in part]) for name in names}
        phases[phase] = {"iterations": len(part), "host_ms": round(float(columns["duration_ns"].mean()) / 1e6, 4)}
        for name in ("gpu_ns", "gpu_idle_ns"):
            known = columns[name][columns[name] >= 0]
            phases[phase][name.replace("_ns", "_ms")] = round(float(known.mean()) / 1e6, 4) if known.size else -1
    return phases


def busy_part(folder: Path) -> None:
    """Compare the GPU time of iterations with what CUPTI shows in the same seconds, under load."""
    spool = folder / "spool-busy"
    server = Server("busy", folder, spool)
    server.load(1, AT_ONCE)
    profiles: list[dict[str, object]] = []
    thread = threading.Thread(target=lambda: profiles.append(server.post("/profile", {"seconds": 3.0})))
    loads = threading.Thread(target=lambda: server.load(2, 4 * REQUESTS))
    loads.start()
    time.sleep(1)
    thread.start()
    thread.join()
    loads.join()
    end(server.program)
    time.sleep(2)
    results["busy"] = beside_cupti(profiles[0], spool)
    report(f"busy: {json.dumps(results['busy'])}")


def beside_cupti(window: dict[str, int], spool: Path) -> dict[str, object]:
    """Return which part of a window the GPU was busy by the iterations' events, and by CUPTI."""
    # Iterations overlap with their launches: those that the host began well inside the window.
    low, high = int(window["began_ns"]) + 200_000_000, int(window["ended_ns"]) - 200_000_000
    rows = sorted(rows_of(spool, "gpu.iteration.v1"), key=lambda row: int(row["start_ns"]))
    inside = [row for row in rows if low <= int(row["start_ns"]) < high and int(row["gpu_ns"]) >= 0]
    span = sum(int(row["gpu_ns"]) for row in inside)
    idle = sum(max(int(row["gpu_idle_ns"]), 0) for row in inside)
    share = span / (span + idle) if inside else 0.0
    cupti = int(window["busy_ns"]) / max(int(window["last_ns"]) - int(window["first_ns"]), 1)
    return {
        "window": window, "iterations": len(inside), "share_of_time_by_events": round(share, 5),
        "share_of_time_by_cupti": round(cupti, 5),
        "events_above_cupti_percent": round(100 * (share / cupti - 1), 3) if cupti else None,
    }  # fmt: skip


def pairs_part(folder: Path, name: str = "pairs", **more: str) -> None:
    """Compare rounds of the same requests in one process, with the adapter's methods and with the engine's own."""
    spool = folder / f"spool-{name}"
    seconds = min(PAIRS_S, max(left() - 45, 20))
    model_of = {
        "SERVING_WIDTH": "16384",
        "SERVING_LAYERS": "4",
    } | more  # few wide layers: the GPU takes longer than the host
    program = start(name, [sys.executable, JOB, "pairs", str(seconds)], spool, **model_of)
    answer = program.communicate(timeout=seconds + 90)[0]
    lines = [json.loads(line) for line in answer.splitlines() if line.startswith("{")]
    values = [line["pair"] for line in lines if "pair" in line]
    ratios = {}
    for key in ("tokens_per_s", "tpot_ms"):
        ratio, half = mean_ratio([v["recorded"][key] for v in values], [v["plain"][key] for v in values])
        ratios[key] = {"percent": round(100 * (ratio - 1), 3), "half_interval": round(100 * half, 3)}
    window = next((line["window"] for line in lines if "window" in line), None)
    time.sleep(2)
    rows = rows_of(spool, "gpu.iteration.v1")
    results[name] = {
        "recorded_above_plain": ratios, "pairs": len(values), "values": values, "iterations": len(rows),
        "phases": _phases(rows), "busy": beside_cupti(window, spool) if window else None,
    }  # fmt: skip
    report(f"{name}: {json.dumps({k: v for k, v in results[name].items() if k != 'values'})}")


def graphs_part(folder: Path) -> None:
    """The same with CUDA graphs."""
    pairs_part(folder, "graphs", SERVING_GRAPHS="1")


def adapters_part(folder: Path) -> None:
    """Cost of each adapter a token: iterations with it against those without, by tokens."""
    spool = folder / "spool-adapters"
    program = start("adapters", [sys.executable, JOB, "adapters"], spool)
    answer = program.communicate(timeout=120)[0]
    time.sleep(2)
    requests, iterations = rows_of(spool, "gpu.request.v1"), rows_of(spool, "gpu.iteration.v1")
    names = sorted({str(row["adapter"]) for row in requests})
    timed = [row for row in iterations if int(row["gpu_ns"]) >= 0] or iterations
    key = "gpu_ns" if int(timed[0]["gpu_ns"]) >= 0 else "duration_ns"
    counts = np.zeros((len(timed), len(names)))
    for at, row in enumerate(timed):
        for part in str(row["adapters"]).split(","):
            name, _, count = part.rpartition("=")
            if name in names:
                counts[at, names.index(name)] = int(count)
    solved = np.linalg.lstsq(counts, np.array([float(row[key]) for row in timed]), rcond=None)[0]
    shares: dict[str, list[float]] = defaultdict(list)
    for row in requests:
        shares[str(row["adapter"])].append(float(row["gpu_ns"]) / max(int(row["output_tokens"]), 1))
    results["adapters"] = {
        "job": answer.strip(), "requests": len(requests), "iterations": len(iterations), "time": key,
        "us_per_token_by_regression": {name: round(float(ns) / 1e3, 2) for name, ns in zip(names, solved, strict=True)},
        "us_per_token_by_shares": {name: round(mean(values) / 1e3, 2) for name, values in shares.items()},
    }  # fmt: skip
    report(f"adapters: {json.dumps(results['adapters'])}")


def later(rounds: list[int] = [0]) -> float:  # noqa: B006
    """Return a clock by which each round of a RingFolder is due."""
    rounds[0] += 10
    return float(rounds[0])


def ranks_part(folder: Path) -> None:
    """Run tensor parallelism on two ranks, healthy and with rank 1 late, and evaluate what an agent would publish."""
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
        batches = []
        for path in sorted([*spool.glob("*/*.seg"), *spool.glob("*/*.taken")]):
            for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], True):
                if getattr(frame, "kind", None) == DATA and frame.topic in ("gpu.collective.v1", "gpu.step.v1"):
                    batch = decode(model(frame.topic), frame.body)
                    batches.append((int(batch.envelope["sent_ns"]), batch))
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
        results[name] = {
            "job": answer.strip().splitlines()[-2:], "rings_left": not rings.is_empty, "batches": len(batches),
            "verdicts": dict(named), "first_step": first, "iterations": len(iterations),
            "roles": _counts(row["role"] for row in iterations), "request_rows": len(rows_of(spool, "gpu.request.v1")),
        }  # fmt: skip
        rings.close()
        report(f"{name}: {json.dumps(results[name])}")


def serve_part(folder: Path, name: str = "serve", requests: int = 0, policy: str = "auto") -> None:
    """Send requests with a caller's trace to `transformers serve`; each has a row with it."""
    model = folder / "tiny"
    if not model.exists():
        subprocess.run([sys.executable, str(ENGINE), "model", str(model)], check=True, stdout=subprocess.DEVNULL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "serve", str(model), "--continuous-batching", "--port", str(port)]
    spool = OUT / f"spool-{name}"
    program = start(name, command, spool, policy)
    traces = [f"00-{n + 1:032x}-{n + 1:016x}-01" for n in range(requests or TRACES)]
    todo, lock, rng = list(traces), threading.Lock(), random.Random(0)
    answers: list[tuple[int, str]] = []
    give_up = time.monotonic() + min(100, max(left() - 20, 20))

    def post(connection: HTTPConnection, trace: str, words: int, tokens: int) -> None:
        prompt = "the quick brown fox " * words
        body = json.dumps({"model": str(model), "prompt": prompt, "max_tokens": tokens})
        headers = {"Content-Type": "application/json", "traceparent": trace}
        connection.request("POST", "/v1/completions", body, headers)
        answer = connection.getresponse()
        answers.append((answer.status, answer.read()[:200].decode()))

    def client() -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        while left() > 25:
            with lock:
                if not todo:
                    return
                trace, words, tokens = todo.pop(), rng.randint(1, 16), rng.randint(4, 24)
            post(connection, trace, words, tokens)

    while True:
        try:
            post(HTTPConnection("127.0.0.1", port, timeout=60), todo[-1], 2, 8)
            todo.pop()
            break
        except OSError:
            if time.monotonic() > give_up or program.poll() is not None:
                raise
            time.sleep(0.5)
    began = time.monotonic()
    clients = [threading.Thread(target=client) for _ in range(AT_ONCE)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    seconds = time.monotonic() - began
    end(program)
    time.sleep(2)
    rows, iterations = rows_of(spool, "gpu.request.v1"), rows_of(spool, "gpu.iteration.v1")
    gpu = sum(max(int(row["gpu_ns"]), 0) for row in iterations)
    results[name] = {
        "sent": len(answers), "seconds": round(seconds, 1), "statuses": _counts(status for status, _ in answers),
        "first": answers[0][1], "request_rows": len(rows), "iterations": len(iterations),
        "rows_with_their_trace": len({row["traceparent"] for row in rows} & set(traces)),
        "outcomes": _counts(row["outcome"] for row in rows), "gpu_s": gpu / 1e9,
        "gpu_s_of_requests": sum(max(int(row["gpu_ns"]), 0) for row in rows) / 1e9,
        "kernels": len(rows_of(spool, "gpu.kernel.v1")),
    }  # fmt: skip
    report(f"{name}: {json.dumps(results[name])}")


def deep_part(folder: Path) -> None:
    """Serve with CUPTI all the time: the spool has the kernels of each iteration."""
    serve_part(folder, "deep", 64, "always")


PARTS = {
    "load": load_part, "serve": serve_part, "busy": busy_part, "adapters": adapters_part, "ranks": ranks_part,
    "pairs": pairs_part, "graphs": graphs_part, "deep": deep_part,
}  # fmt: skip


def main() -> int:
    OUT.mkdir(exist_ok=True, parents=True)
    wanted, failed = sys.argv[2:] or ["load", *NEEDED_S], 0
    with tempfile.TemporaryDirectory(dir="/var/tmp" if os.access("/var/tmp", os.W_OK) else None) as path:
        folder = Path(path)
        subprocess.run([sys.executable, JOB, "model", str(folder / "model")], check=True, stdout=subprocess.DEVNULL)
        report("the model is written")
        for name in wanted:
            if left() < 20:
                report(f"{name}: no time left")
                continue
            try:
                PARTS[name](folder)
            except Exception:
                failed += 1
                results[f"{name} failed"] = traceback.format_exc()
                report(f"{name} failed:\n{traceback.format_exc()}")
            (OUT / "serving.json").write_text(json.dumps(results, indent=1, default=str))
    return failed


if __name__ == "__main__":
    sys.exit(main())
