"""Shares of requests in the time of the iterations that they were in, by tokens.

A share is an estimate: tokens of a batch run in the same kernels. Time t of an iteration that computed n tokens gives a
request with k of them t * k / n. Shares are whole ns and sum to t: the i-th gets what the first i requests have
together, rounded down, less what the first i - 1 have. Iterations with equal batches are shared out together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

#: Stands for a time that is not known.
UNKNOWN = -1
#: Most requests that are under way; of further ones nothing is kept.
MOST_REQUESTS = 1 << 17


@dataclass
class OpenRequest:
    """Holds what is known of a request; times in ns.

    `batches`: those of its batches whose times are not shared out yet.
    """

    facts: dict[str, Any]
    start_ns: int
    first_start_ns: int = UNKNOWN
    first_token_ns: int = UNKNOWN
    end_ns: int = UNKNOWN
    end: dict[str, Any] = field(default_factory=dict)
    iterations: int = 0
    first_iteration: int = UNKNOWN
    last_iteration: int = UNKNOWN
    gpu_ns: int = UNKNOWN
    prefill_gpu_ns: int = UNKNOWN
    host_ns: int = 0
    batches: int = 0


@dataclass
class SharedBatch:
    """Holds a batch, and what iterations with it took together; times in ns.

    `tokens`: (request, tokens). `prefill`: request -> tokens of its prompt. `open`: iterations whose GPU time is not
    known yet. `is_over`: another batch came.
    """

    tokens: Sequence[tuple[int, int]]
    prefill: dict[int, int]
    adapters: str = ""
    first: int = UNKNOWN
    last: int = UNKNOWN
    iterations: int = 0
    gpu_ns: int = 0
    timed: int = 0
    host_ns: int = 0
    open: int = 0
    is_over: bool = False


class RequestShares:
    """Follows the requests of one engine. Used by one thread; `ended` yields those whose rows are complete.

    `unknown`: requests that iterations name and of which nothing came, or too much.
    """

    def __init__(self) -> None:
        self.requests: dict[int, OpenRequest] = {}
        self._batch: SharedBatch | None = None
        self._newest: tuple[Sequence[tuple[int, int]], dict[int, int]] = ((), {})
        self._waiting: dict[int, SharedBatch] = {}
        self.unknown = 0

    def begin(self, number: int, facts: dict[str, Any], start_ns: int) -> None:
        """Take a request that came."""
        if len(self.requests) < MOST_REQUESTS:
            self.requests[number] = OpenRequest(facts, start_ns)

    def first_token(self, number: int, time_ns: int) -> None:
        """Take a request's first token."""
        if (request := self.requests.get(number)) and request.first_token_ns == UNKNOWN:
            request.first_token_ns = time_ns

    def end(self, number: int, facts: dict[str, Any], end_ns: int) -> None:
        """Take the end of a request."""
        if request := self.requests.get(number):
            request.end, request.end_ns = facts, end_ns

    def new_batch(self, tokens: Sequence[tuple[int, int]], prefill: dict[int, int]) -> None:
        """Take a batch that differs from the one before."""
        self._close()
        self._newest = (tokens, prefill)

    def _opened(self) -> SharedBatch:
        if self._batch is None:
            tokens, prefill = self._newest
            self._batch = SharedBatch(tokens, prefill, self._adapters(tokens))
            for number, _ in tokens:
                if request := self.requests.get(number):
                    request.batches += 1
                else:
                    self.unknown += 1
        return self._batch

    def iteration(self, number: int, start_ns: int, host_ns: int, *, gpu_follows: bool) -> SharedBatch:
        """Take an iteration of the newest batch, and return the batch."""
        batch = self._opened()
        batch.first = number if batch.first == UNKNOWN else batch.first
        batch.last, batch.iterations, batch.host_ns = number, batch.iterations + 1, batch.host_ns + host_ns
        if batch.iterations == 1:
            for name, _ in batch.tokens:
                if (request := self.requests.get(name)) and request.first_start_ns == UNKNOWN:
                    request.first_start_ns = start_ns
        if gpu_follows:
            batch.open += 1
            self._waiting[number] = batch
        return batch

    def gpu_time(self, number: int, gpu_ns: int) -> None:
        """Take the GPU time of an iteration; UNKNOWN where there will be none."""
        batch = self._waiting.pop(number, None)
        if batch is None:
            return
        batch.open -= 1
        if gpu_ns >= 0:
            batch.gpu_ns += gpu_ns
            batch.timed += 1
        if batch.is_over and not batch.open:
            self._share(batch)

    def ended(self, before_ns: int) -> Iterator[OpenRequest]:
        """Yield, and forget, the requests that ended before a time and have all their shares."""
        if not any(0 <= request.end_ns < before_ns for request in self.requests.values()):
            return
        self._close()  # what its iterations took is shared out now
        done = [n for n, at in self.requests.items() if 0 <= at.end_ns < before_ns and not at.batches]
        for number in done:
            yield self.requests.pop(number)

    def finish(self, end_ns: int) -> Iterator[OpenRequest]:
        """Yield all requests: the engine has ended, and no more times come."""
        for number in list(self._waiting):
            self.gpu_time(number, UNKNOWN)
        self._close()
        for request in self.requests.values():
            if request.end_ns < 0:
                request.end_ns, request.end = end_ns, {"outcome": "lost"}
            yield request
        self.requests.clear()

    def oldest_start_ns(self, default_ns: int) -> int:
        """Return the earliest start of the requests that are left."""
        return min((request.start_ns for request in self.requests.values()), default=default_ns)

    def _close(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.is_over = True
            if not batch.open:
                self._share(batch)

    def _share(self, batch: SharedBatch) -> None:
        total = sum(count for _, count in batch.tokens)
        below = 0
        for number, count in batch.tokens:
            request = self.requests.get(number)
            if request is not None:
                request.batches -= 1
            if request is not None and batch.iterations:
                request.iterations += batch.iterations
                if request.first_iteration == UNKNOWN:
                    request.first_iteration = batch.first
                request.last_iteration = max(request.last_iteration, batch.last)
                request.host_ns += _share_of(batch.host_ns, below, count, total)
                if batch.timed:
                    gpu_ns = _share_of(batch.gpu_ns, below, count, total)
                    prompt_ns = gpu_ns * batch.prefill.get(number, 0) // count if count else 0
                    request.gpu_ns = max(request.gpu_ns, 0) + gpu_ns
                    request.prefill_gpu_ns = max(request.prefill_gpu_ns, 0) + prompt_ns
            below += count

    def _adapters(self, tokens: Sequence[tuple[int, int]]) -> str:
        sums: dict[str, int] = {}
        for number, count in tokens:
            request = self.requests.get(number)
            if request is not None and (name := request.facts.get("adapter")):
                sums[str(name)] = sums.get(str(name), 0) + count
        return ",".join(f"{name}={count}" for name, count in sorted(sums.items()))


def _share_of(time_ns: int, below: int, count: int, total: int) -> int:
    return time_ns * (below + count) // total - time_ns * below // total if total else 0
