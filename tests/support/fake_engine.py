"""A fake inference engine: a scheduler with continuous batching over an invented clock, without a model.

Run as a program it makes real calls of drumline's API, in real time: `python fake_engine.py REQUESTS`.
"""

from __future__ import annotations

import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeRequest:
    """One request. Times are ns of the engine's clock."""

    name: str
    start_ns: int
    prompt: int
    wanted: int
    adapter: str = ""
    computed: int = 0
    output: int = 0
    preemptions: int = 0


@dataclass
class FakeIteration:
    """One iteration, as a recorder is told of it."""

    number: int
    start_ns: int
    duration_ns: int
    gpu_ns: int
    gpu_idle_ns: int
    tokens: dict[str, int]
    prefill: dict[str, int]
    waiting: int
    kv_used: int
    preempted: int
    ended: list[FakeRequest] = field(default_factory=list)
    first: list[str] = field(default_factory=list)


@dataclass
class Load:
    """Load of an engine, and how it works. Times in ns, `per_s`: requests a second."""

    per_s: float = 20.0
    prompts: tuple[int, int] = (20, 400)
    outputs: tuple[int, int] = (10, 120)
    batch: int = 64
    tokens: int = 512
    chunked: bool = True
    kv_blocks: int = 4_000
    block: int = 16
    base_ns: int = 4_000_000
    token_ns: int = 9_000
    host_ns: int = 600_000
    adapters: tuple[str, ...] = ("",)
    slow_adapter: str = ""
    seed: int = 1


class FakeEngine:
    """Yields iterations of a load, over invented time."""

    def __init__(self, load: Load, start_ns: int = 0) -> None:
        self.load, self.now_ns = load, start_ns
        self._random = random.Random(load.seed)
        self._next_ns = start_ns
        self._count = self._iteration = 0
        self.waiting: deque[FakeRequest] = deque()
        self.running: list[FakeRequest] = []
        self._free = load.kv_blocks

    def run(self, until_ns: int) -> Any:
        """Yield (requests that came, iteration) until a time; the iteration is None where nothing is to be done."""
        while self.now_ns < until_ns:
            came = list(self._arrivals())
            self.waiting.extend(came)
            if not self.waiting and not self.running:
                self.now_ns = self._next_ns
                continue
            yield came, self._iterate()

    def _arrivals(self) -> Any:
        load = self.load
        while self._next_ns <= self.now_ns:
            self._count += 1
            yield FakeRequest(
                f"r{self._count}", self._next_ns, self._random.randint(*load.prompts),
                self._random.randint(*load.outputs), self._random.choice(load.adapters),
            )  # fmt: skip
            self._next_ns += round(self._random.expovariate(load.per_s) * 1e9)

    def _blocks(self, request: FakeRequest, tokens: int) -> int:
        size = self.load.block
        return -(-(request.computed + tokens) // size) - -(-request.computed // size)

    def _iterate(self) -> FakeIteration:
        load, tokens, prefill, preempted = self.load, {}, {}, 0
        budget = load.tokens
        for request in list(self.running):
            need = min(max(request.prompt + request.output - request.computed, 1), budget)
            if not load.chunked and request.computed < request.prompt:
                need = request.prompt + request.output - request.computed
            blocks = self._blocks(request, need)
            while blocks > self._free and self.running[-1] is not request:
                self._preempt(self.running[-1])
                preempted += 1
            if request not in self.running or blocks > self._free or need <= 0:
                continue
            self._take(request, need, tokens, prefill)
            budget -= need
        while self.waiting and len(self.running) < load.batch and budget > 0 and not preempted:
            request = self.waiting[0]
            need = min(request.prompt + request.output, budget) if load.chunked else request.prompt + request.output
            if self._blocks(request, need) > self._free:
                break
            self.running.append(self.waiting.popleft())
            self._take(request, need, tokens, prefill)
            budget -= need
        gpu_ns = load.base_ns + load.token_ns * sum(tokens.values())
        by_name = {request.name: request for request in self.running}
        if load.slow_adapter and tokens:  # a token of it takes twice as long
            slow = sum(n for name, n in tokens.items() if by_name[name].adapter == load.slow_adapter)
            gpu_ns += gpu_ns * slow // sum(tokens.values())
        gpu_ns = round(gpu_ns * self._random.uniform(0.98, 1.02))
        iteration = FakeIteration(
            self._iteration, self.now_ns, load.host_ns + gpu_ns, gpu_ns, load.host_ns, tokens, prefill,
            len(self.waiting), load.kv_blocks - self._free, preempted,
        )  # fmt: skip
        self._iteration += 1
        self.now_ns += iteration.duration_ns
        self._results(iteration, by_name)
        return iteration

    def _take(self, request: FakeRequest, need: int, tokens: dict[str, int], prefill: dict[str, int]) -> None:
        self._free -= self._blocks(request, need)
        tokens[request.name] = need
        if request.computed + need <= request.prompt or need > 1:
            prefill[request.name] = need
        request.computed += need

    def _preempt(self, request: FakeRequest) -> None:
        self.running.remove(request)
        self.waiting.appendleft(request)
        self._free += -(-request.computed // self.load.block)
        request.computed = 0
        request.preemptions += 1

    def _results(self, iteration: FakeIteration, by_name: dict[str, FakeRequest]) -> None:
        for name in iteration.tokens:
            request = by_name.get(name)
            if request is None or request.computed < request.prompt + request.output:
                continue
            request.output += 1
            if request.output == 1:
                iteration.first.append(name)
            if request.output >= request.wanted:
                iteration.ended.append(request)
                self.running.remove(request)
                self._free += -(-request.computed // self.load.block)


def main() -> None:
    """Serve some requests in real time with drumline's own calls."""
    import drumline

    wanted, open_requests, done = int(sys.argv[1]), {}, 0
    engine = FakeEngine(Load(per_s=500.0, base_ns=300_000, token_ns=0, host_ns=0))
    for came, iteration in engine.run(1 << 62):
        for request in came:
            open_requests[request.name] = drumline.request(
                request.name, prompt_tokens=request.prompt, model="fake", tenant="t1", engine="fake"
            )
        with drumline.iteration(iteration.tokens, prefill=iteration.prefill, engine="fake", waiting=iteration.waiting):
            time.sleep(iteration.duration_ns / 1e9)
        for name in iteration.tokens:
            open_requests[name].token()
        for request in iteration.ended:
            open_requests.pop(request.name).end("length")
            done += 1
        if done >= wanted:
            break


if __name__ == "__main__":
    main()
