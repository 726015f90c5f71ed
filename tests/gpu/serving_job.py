"""Jobs of serving.py, which need PyTorch and transformers: a model, a server, ranks with tensor parallelism, an engine.

usage: serving_job.py model FOLDER | server FOLDER PORT_FILE | ranks FOLDER LATE | adapters | pairs SECONDS

model writes a small Llama with random weights. server answers POST /generate {"tokens": [...], "count": n} by
continuous batching, over HTTP, with the times of each token, and POST /profile {"seconds": s} with what CUPTI shows of
these seconds. ranks generates with tensor parallelism below torchrun; rank LATE (-1: none) sleeps a fifth of each
iteration.
adapters is an engine of its own with drumline's calls, of whose adapters one computes twice as much. pairs takes turns
between rounds of the same requests with the adapter's methods and with the engine's own, prints each pair, and at last
what CUPTI shows of a round. SERVING_WIDTH, SERVING_LAYERS, SERVING_GRAPHS=1: of its model, and CUDA graphs.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

import torch
import transformers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
#: Few layers, so that an iteration is short beside what recording costs.
WIDTH = int(os.environ.get("SERVING_WIDTH", "2048")) if DEVICE == "cuda" else 64
LAYERS = int(os.environ.get("SERVING_LAYERS", "4")) if DEVICE == "cuda" else 2
TOKENS = 8_192
#: Requests of ranks: (tokens of the prompt, tokens to generate).
RANKS_LOAD = [(64 + 8 * (n % 32), 160) for n in range(192 if DEVICE == "cuda" else 12)]
SECONDS_OF_ADAPTERS = float(os.environ.get("SERVING_ADAPTERS_S", "20"))


def llama() -> transformers.LlamaConfig:
    heads = max(WIDTH // 128, 2)
    return transformers.LlamaConfig(
        vocab_size=TOKENS, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=WIDTH // heads,
        max_position_embeddings=4_096,
    )  # fmt: skip


def write_model(folder: Path) -> None:
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(llama()).to(DTYPE).save_pretrained(folder)


def load_model(folder: str, **more: object) -> transformers.PreTrainedModel:
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=DTYPE, **more).eval()


def settings(count: int) -> transformers.GenerationConfig:
    return transformers.GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)


def batching() -> dict[str, object]:
    """Options of continuous batching, of those that this version of transformers has."""
    wanted: dict[str, object] = {"max_batch_tokens": 1_024, "use_cuda_graph": os.environ.get("SERVING_GRAPHS") == "1"}
    if DEVICE == "cpu":
        wanted |= {"num_blocks": 256, "max_batch_tokens": 128}
    config = transformers.ContinuousBatchingConfig(**wanted)
    return {"continuous_batching_config": config}


def serve(folder: str, port_file: str) -> None:
    model = load_model(folder).to(DEVICE)
    manager = model.init_continuous_batching(generation_config=settings(32), **batching())
    manager.start()
    answers: dict[str, Queue] = {}

    def route() -> None:
        while True:
            output = manager.get_result(timeout=1)
            if output is not None and output.is_finished():
                answers.pop(output.request_id).put(output)

    threading.Thread(target=route, daemon=True).start()
    number = iter(range(1 << 62))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: object) -> None:
            """Stay silent."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(profile(body) if self.path == "/profile" else self.generate(body)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def generate(self, body: dict) -> dict:
            name, came = f"http-{next(number)}", time.perf_counter()
            answers[name] = Queue()
            queue = answers[name]
            manager.add_request(
                body["tokens"], request_id=name, max_new_tokens=body["count"], record_timestamps=True, eos_token_id=-1
            )
            output = queue.get(timeout=300)
            times = output.timestamps
            return {"tokens": len(output.generated_tokens), "ttft": times[0] - came,
                    "tpot": (times[-1] - times[0]) / max(len(times) - 1, 1), "id": name}  # fmt: skip

    ThreadingHTTPServer.request_queue_size = 256
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Path(port_file + ".part").write_text(str(server.server_port))
    Path(port_file + ".part").rename(port_file)
    server.serve_forever()


def profile(body: dict) -> dict:
    """Return begin and end (ns since the epoch) of some seconds, and in them the time in which the GPU ran anything."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA]) as recorded:
        torch.cuda.synchronize()
        began = time.time_ns()
        time.sleep(body["seconds"])
        ended = time.time_ns()
    spans = []
    for event in recorded.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA and event.duration_ns() > 0:
            spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
    spans.sort()
    busy, until = 0, 0
    for start, end in spans:
        busy += max(0, end - max(start, until))
        until = max(until, end)
    first, last = (spans[0][0], until) if spans else (began, ended)
    times = {"began_ns": began, "ended_ns": ended, "busy_ns": busy, "first_ns": first, "last_ns": last}
    return {**times, "kernels": len(spans)}


def ranks(folder: str, late: int) -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = load_model(folder, tp_plan="auto")
    rank = int(os.environ["RANK"])
    prompts = [[(7 * n + k) % TOKENS for k in range(size)] for n, (size, _) in enumerate(RANKS_LOAD)]
    times: list[float] = []

    def forward_begins(*arguments: object) -> None:
        now = time.perf_counter()
        times.append(now)
        if rank == late and len(times) > 50:
            recent = sorted(b - a for a, b in zip(times[-41:-1], times[-40:], strict=True))
            time.sleep(0.2 * recent[len(recent) // 2])

    model.register_forward_pre_hook(forward_begins)
    until = time.monotonic() + float(os.environ.get("SERVING_RANKS_S", "45"))
    rounds = 0
    while True:
        model.generate_batch(prompts, generation_config=settings(RANKS_LOAD[0][1]), progress_bar=False, **batching())
        rounds += 1
        flag = torch.tensor([time.monotonic() < until], device="cuda", dtype=torch.int)
        torch.distributed.broadcast(flag, 0)
        if not flag.item():
            break
    print(json.dumps({"rank": rank, "rounds": rounds, "iterations": len(times)}))


def adapters() -> None:
    import drumline

    size = 2_048 if DEVICE == "cuda" else 128
    weights = torch.randn(size, size, device=DEVICE, dtype=DTYPE)
    running: dict[str, tuple[object, str, int]] = {}
    number, until = 0, time.monotonic() + SECONDS_OF_ADAPTERS
    while time.monotonic() < until:
        while len(running) < 32:
            name, adapter = f"a-{number}", ("plain", "slow", "other")[number % 3] if number // 16 % 2 else "plain"
            request = drumline.request(name, prompt_tokens=1, model="own", adapter=adapter, tenant=f"t{number % 2}")
            running[name] = (request, adapter, 20 + number % 40)
            number += 1
        with drumline.iteration(dict.fromkeys(running, 1)):
            for _, adapter, _ in running.values():
                for _ in range(4 if adapter == "slow" else 2):
                    weights @ weights
            if DEVICE == "cuda":
                torch.cuda.synchronize()
        for name, (request, adapter, left) in list(running.items()):
            request.token()
            if left <= 1:
                request.end("length")
                del running[name]
            else:
                running[name] = (request, adapter, left - 1)
    for request, _, _ in running.values():
        request.end("abort")
    print(json.dumps({"requests": number}))


def switch() -> Callable[[bool], None]:
    """Return a function that gives the engine's classes the adapter's methods, or their own."""
    from transformers.generation.continuous_batching import continuous_api as module

    kinds = (module.ContinuousBatchProcessor, module.Scheduler, module.OutputRouter, module.ModelRunner,
             module.ContinuousBatchingManager)  # fmt: skip
    wrapped = [
        (kind, name, call)
        for kind in kinds
        for name, call in vars(kind).items()
        if getattr(getattr(call, "__code__", None), "co_filename", "").endswith("engines/seams.py")
    ]
    if not wrapped:
        raise RuntimeError("the adapter is not in place")

    def set_methods(recorded: bool) -> None:
        for kind, name, call in wrapped:
            setattr(kind, name, call if recorded else call.__wrapped__)

    return set_methods


class Rounds:
    """Rounds of the same requests, all at once, to one manager of continuous batching."""

    def __init__(self, requests: int, prompt: int, count: int) -> None:
        torch.manual_seed(0)
        torch.set_default_dtype(DTYPE)
        with torch.device(DEVICE):
            model = transformers.LlamaForCausalLM(llama()).eval()
        torch.set_default_dtype(torch.float32)
        self.prompts = [[(7 * n + k) % TOKENS for k in range(prompt)] for n in range(requests)]
        self.count, self.number = count, 0
        self.manager = model.init_continuous_batching(generation_config=settings(count), **batching())
        self.manager.start()

    def run(self) -> dict[str, float]:
        """Return tokens a second and ms a token of one round."""
        began, outputs = time.perf_counter(), []
        for prompt in self.prompts:
            self.number += 1
            self.manager.add_request(
                prompt,
                request_id=f"p-{self.number}",
                max_new_tokens=self.count,
                record_timestamps=True,
                eos_token_id=-1,
            )
        while len(outputs) < len(self.prompts):
            output = self.manager.get_result(timeout=1)
            if output is not None and output.is_finished():
                outputs.append(output)
        seconds = time.perf_counter() - began
        tpot = [(of.timestamps[-1] - of.timestamps[0]) / max(len(of.timestamps) - 1, 1) for of in outputs]
        return {"tokens_per_s": len(outputs) * self.count / seconds, "tpot_ms": 1e3 * sum(tpot) / len(tpot)}


def pairs(seconds: float) -> None:
    """Take turns; the order within a pair changes, so that a drift counts for neither."""
    until = time.monotonic() + seconds
    recorded = switch()
    rounds = Rounds(*map(int, os.environ.get("SERVING_ROUND", "64,256,128").split(",")))
    for _ in range(2):
        print(json.dumps({"first": rounds.run()}), flush=True)
    pair = 0
    while time.monotonic() < until:
        values = {}
        for is_recorded in (True, False) if pair % 2 else (False, True):
            recorded(is_recorded)
            values["recorded" if is_recorded else "plain"] = rounds.run()
        pair += 1
        print(json.dumps({"pair": values}), flush=True)
    recorded(True)
    rounds.run()
    if DEVICE == "cuda":
        windows: list[dict] = []
        thread = threading.Thread(target=lambda: windows.append(profile({"seconds": 3.0})))
        thread.start()
        while thread.is_alive():
            rounds.run()
        print(json.dumps({"window": windows[0]}), flush=True)
    rounds.manager.stop(block=True)


if __name__ == "__main__":
    mode, *rest = sys.argv[1:]
    if mode == "model":
        write_model(Path(rest[0]))
    elif mode == "server":
        serve(*rest)
    elif mode == "ranks":
        ranks(rest[0], int(rest[1]))
    elif mode == "pairs":
        pairs(float(rest[0]))
    else:
        adapters()
