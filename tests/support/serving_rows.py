"""Rows of a fake engine's load, as JSON for ClickHouse, and the same load as messages of an engine's process."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from support.fake_engine import FakeEngine, Load

from drumline.producers.serving.request_shares import RequestShares
from drumline.producers.serving.serving_rows import request_row

START_NS = 1_760_000_000_000_000_000 // 60_000_000_000 * 60_000_000_000


def time_text(time_ns: int) -> str:
    """A time as ClickHouse reads it, exact to the ns."""
    return f"{time_ns // 10**9}.{time_ns % 10**9:09d}"


def iterations(load: Load, seconds: float, job: str = "served", **more: Any) -> Iterator[str]:
    """Lines of the table `iterations`. `more`: replaces columns."""
    engine = FakeEngine(load, START_NS)
    adapters: dict[str, str] = {}
    end_ns, left = START_NS, False
    for came, iteration in engine.run(START_NS + round(seconds * 1e9)):
        adapters |= {request.name: request.adapter for request in came}
        prefill, tokens = sum(iteration.prefill.values()), sum(iteration.tokens.values())
        both = len(iteration.tokens) > len(iteration.prefill)
        sums: dict[str, int] = {}
        for name, count in iteration.tokens.items():
            if adapters[name]:
                sums[adapters[name]] = sums.get(adapters[name], 0) + count
        row = {
            "job": job, "run": "r1", "rank": 0, "host": "h", "gpu_uuid": "GPU-0", "process_id": "p", "engine": "fake",
            "role": "engine", "iteration": iteration.number, "start": time_text(iteration.start_ns),
            "phase": ("mixed" if both else "prefill") if prefill else "decode", "duration_ns": iteration.duration_ns,
            "gap_ns": iteration.start_ns - end_ns if left else 0, "schedule_ns": load.host_ns // 3,
            "gpu_ns": iteration.gpu_ns, "gpu_idle_ns": iteration.gpu_idle_ns,
            "requests": len(iteration.tokens), "prefill_requests": len(iteration.prefill), "prefill_tokens": prefill,
            "decode_tokens": tokens - prefill, "waiting": iteration.waiting, "kv_used": iteration.kv_used,
            "kv_total": load.kv_blocks, "preempted": iteration.preempted, "published": f"{time.time():.3f}",
            "adapters": ",".join(f"{name}={count}" for name, count in sorted(sums.items())), **more,
        }  # fmt: skip
        end_ns, left = iteration.start_ns + iteration.duration_ns, bool(engine.running or engine.waiting)
        yield json.dumps(row)


def requests(load: Load, seconds: float, job: str = "served", tenants: int = 2) -> Iterator[str]:
    """Lines of the table `requests` for the same load, by the product's own shares."""
    engine, shares = FakeEngine(load, START_NS), RequestShares()
    numbers: dict[str, int] = {}
    for came, iteration in engine.run(START_NS + round(seconds * 1e9)):
        for request in came:
            number = numbers[request.name] = len(numbers) + 1
            facts = {"id": request.name, "adapter": request.adapter, "model": "fake", "prompt_tokens": request.prompt}
            facts |= {"tenant": f"t{number % tenants}", "traceparent": f"00-{number:032x}-{number:016x}-01"}
            shares.begin(number, facts, request.start_ns)
        batches = [
            {numbers[name]: count for name, count in part.items()} for part in (iteration.tokens, iteration.prefill)
        ]
        shares.new_batch([*batches[0].items()], batches[1])
        shares.iteration(iteration.number, iteration.start_ns, iteration.duration_ns, gpu_follows=True)
        shares.gpu_time(iteration.number, iteration.gpu_ns)
        end_ns = iteration.start_ns + iteration.duration_ns
        for name in iteration.first:
            shares.first_token(numbers[name], end_ns)
        for request in iteration.ended:
            facts = {"output_tokens": request.output, "outcome": "length", "preemptions": request.preemptions}
            shares.end(numbers[request.name], {**facts, "cached_tokens": 0}, end_ns)
        for over in shares.ended(end_ns + 1):
            row = request_row("fake", over)
            row |= {"job": job, "run": "r1", "host": "h", "gpu_uuid": "GPU-0", "process_id": "p"}
            row["start"], row["published"] = time_text(row.pop("start_ns")), f"{time.time():.3f}"
            yield json.dumps(row)


def device_samples(seconds: int, mw: int, job: str = "served", gpu: str = "GPU-0", **more: Any) -> Iterator[str]:
    """Lines of the table `device_samples`, one a second; as the sampler it repeats an energy counter read each 10 s."""
    for second in range(seconds):
        row = {
            "job": job, "run": "r1", "rank": 0, "host": "h", "gpu_uuid": gpu, "process_id": "agent", "gpu_index": 0,
            "time": time_text(START_NS + second * 10**9), "power_mw": mw,
            "energy_mj": 5 * 10**9 + second // 10 * 10 * mw, "published": f"{time.time():.3f}", **more,
        }  # fmt: skip
        yield json.dumps(row)
