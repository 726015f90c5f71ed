"""Continuous batching of transformers under a closed load, in one process: serving_engine.py PART SIZE SECONDS

Prints a line of JSON for each result. Parts:
overhead   blocks of the same load with drumline's hooks and without them by turns, in pairs whose order alternates;
           then, recorded, the time in which CUPTI (PyTorch's profiler) sees the GPU busy during one load
healthy    a load; scheduler: its scheduler sleeps before each batch; tokenizer: its loop waits for one that sleeps
SIZE: `gpu` is bound by the GPU (long prompts, a wide model), `launch` by the host that launches (a small one).
"""

import itertools
import json
import random
import sys
import time
from statistics import mean, median

import torch
import transformers
from transformers.generation.continuous_batching import continuous_api

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: Width, layers, tokens of prompts, tokens of answers, requests at once, most tokens of a batch.
SIZES = {
    "gpu": (8_192, 8, 1_024, 16, 16, 2_048),
    "launch": (1_024, 4, 32, 64, 32, 1_024),
    "cpu": (64, 2, 24, 8, 8, 64),
}
VOCABULARY = 8_192
#: Length of a block of the load; s. What a planted fault sleeps before each batch: twice a batch of `gpu`; s.
BLOCK_S, FAULT_S = 2.5, 0.1


def report(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


class Engine:
    """Runs loads until each is over, so that nothing is under way when hooks come and go."""

    def __init__(self, size: str) -> None:
        width, layers, self.prompt, self.answer, self.at_once, most = SIZES[size if DEVICE == "cuda" else "cpu"]
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
            num_attention_heads=max(width // 128, 2), num_key_value_heads=2, head_dim=min(width // 2, 128),
        )  # fmt: skip
        dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
        with torch.device(DEVICE):
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        report(size=size, parameters=sum(weight.numel() for weight in model.parameters()))
        generation = transformers.GenerationConfig(
            max_new_tokens=self.answer, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        blocks = 2 * self.at_once * (self.prompt + self.answer) // 64 + 64
        batching = transformers.ContinuousBatchingConfig(
            block_size=64, num_blocks=blocks, max_batch_tokens=most, use_cuda_graph=False, allow_block_sharing=False
        )
        self.manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
        self.manager.start()
        self.numbers = itertools.count()
        self.rng = random.Random(7)

    def load(self, requests: int) -> dict[str, float]:
        """Run requests, `at_once` at a time; return tokens a second, and ms a token and until the first."""
        began, sent, came = time.perf_counter(), 0, {}
        tpot, ttft = [], []
        for _ in range(requests):
            while sent < requests and len(came) < self.at_once:
                name = f"r{next(self.numbers)}"
                came[name] = time.perf_counter()
                tokens = [self.rng.randrange(VOCABULARY) for _ in range(self.prompt)]
                self.manager.add_request(tokens, request_id=name, record_timestamps=True, eos_token_id=-1)
                sent += 1
            output = self.manager.get_result(timeout=60)
            if output is None:
                raise RuntimeError(f"no answer within 60 s: {self.manager.background_thread_status.fatal_error}")
            times = output.timestamps
            ttft.append(times[0] - came.pop(output.request_id))
            tpot.append((times[-1] - times[0]) / max(len(times) - 1, 1))
        seconds = time.perf_counter() - began
        return {"tokens_per_s": requests * self.answer / seconds, "tpot_ms": 1e3 * mean(tpot),
                "tpot_median_ms": 1e3 * median(tpot), "ttft_ms": 1e3 * mean(ttft), "seconds": seconds}  # fmt: skip

    def warm(self) -> int:
        """Run loads until the speed is that of the load; return the requests of a block."""
        self.load(2 * self.at_once)
        count = 2 * self.at_once
        for _ in range(2):
            seconds = self.load(count)["seconds"]
            count = max(self.at_once, round(count * BLOCK_S / seconds))
        return count


class Hooks:
    """Takes drumline's hooks out of the classes of the engine, and puts them back."""

    def __init__(self) -> None:
        kinds = ("ContinuousBatchProcessor", "Scheduler", "OutputRouter", "ModelRunner", "ContinuousBatchingManager")
        self.methods = [
            (kind, name, method)
            for kind in (getattr(continuous_api, name) for name in kinds)
            for name, method in vars(kind).items()
            if getattr(getattr(method, "__code__", None), "co_filename", "").endswith("seams.py")
        ]

    def switch(self, *, are_on: bool) -> None:
        for kind, name, method in self.methods:
            setattr(kind, name, method if are_on else method.__wrapped__)


def overhead(engine: Engine, until: float) -> None:
    hooks = Hooks()
    report(hooks=len(hooks.methods), requests_of_a_block=(count := engine.warm()))
    for pair in itertools.count():
        if time.monotonic() > until - 3 * BLOCK_S:
            break
        pairs: dict[str, object] = {}
        for are_on in (pair % 2 == 0, pair % 2 == 1):
            hooks.switch(are_on=are_on)
            pairs["recorded" if are_on else "plain"] = engine.load(count)
        report(pair=pair, **pairs)
    hooks.switch(are_on=True)
    busy(engine, count)


def busy(engine: Engine, count: int) -> None:
    """Report the time in which the GPU ran anything, of one load while CUPTI records."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    if DEVICE == "cpu":
        return
    time.sleep(0.5)
    began_ns = time.time_ns()
    with profiler(activities=[ProfilerActivity.CUDA]) as recorded:
        engine.load(count)
        time.sleep(0.3)
        ended_ns = time.time_ns()
    events = recorded.profiler.kineto_results.events()
    kind = torch.autograd.DeviceType.CUDA
    spans = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if e.device_type() == kind)
    busy_ns, until = 0, 0
    for start, end in spans:
        busy_ns += max(0, end - max(start, until))
        until = max(until, end)
    report(busy={"began_ns": began_ns, "ended_ns": ended_ns, "busy_ns": busy_ns, "events": len(spans),
              "span_ns": until - spans[0][0] if spans else 0})  # fmt: skip


def with_fault(engine: Engine, fault: str, until: float) -> None:
    count = engine.warm()
    if fault == "scheduler":
        schedule = engine.manager.batch_processor.scheduler.schedule_batch

        def starving_schedule(*arguments: object) -> object:
            time.sleep(FAULT_S)
            return schedule(*arguments)

        engine.manager.batch_processor.scheduler.schedule_batch = starving_schedule
    elif fault == "tokenizer":
        body = engine.manager._generation_loop_body

        def sleeping_tokenizer(*arguments: object, **named: object) -> object:
            time.sleep(FAULT_S)
            return body(*arguments, **named)

        engine.manager._generation_loop_body = sleeping_tokenizer
    report(fault=fault, from_ns=time.time_ns())
    while time.monotonic() < until - 2 * BLOCK_S:
        report(load=engine.load(max(count // 2, engine.at_once)))


if __name__ == "__main__":
    part, size, seconds = sys.argv[1:]
    end = time.monotonic() + float(seconds)
    engine = Engine(size)
    if part == "overhead":
        overhead(engine, end)
    else:
        with_fault(engine, part, end)
    engine.manager.stop(block=True, timeout=10)
