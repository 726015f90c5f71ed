"""Recorder of an inference engine: what its adapter, or the job's own code, tells of iterations and requests.

Standard library only. Ids of requests leave the process as keyed hashes, unless the job allows them.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from drumline.producers.collector import process_info
from drumline.producers.engines import iteration_messages
from drumline.producers.engines.gpu_events import MOST_PENDING, GpuEvents, gpu_events
from drumline.producers.engines.iteration_messages import GPU_FOLLOWS, PHASES, SAME_BATCH
from drumline.producers.engines.recording_channel import EngineChannel, open_channel

#: hashed (default) or plain: ids of requests; off = nothing of inference engines is recorded.
REQUESTS_VARIABLE = "DRUMLINE_SERVING__REQUESTS"
#: Most characters of an id, a name, or a trace context.
MOST_OF_NAME, MOST_OF_TRACE = 256, 128


@dataclass
class BatchFacts:
    """Holds what is known of an iteration besides its requests; -1 = not known.

    Attributes:
        number: of the iteration; -1 = the next one of this process.
        start_ns, end_ns: host time; ns since the epoch.
        schedule_ns: host time in the scheduler, part of it.
        output_tokens, draft_tokens: tokens that requests got; drafted ones that were computed.
        waiting: requests in the queue.
        kv_used, kv_total: blocks of the KV cache.
        preempted: requests that lost their blocks.
    """

    start_ns: int
    end_ns: int = 0
    number: int = -1
    schedule_ns: int = -1
    output_tokens: int = -1
    draft_tokens: int = -1
    waiting: int = -1
    kv_used: int = -1
    kv_total: int = -1
    preempted: int = 0


class EngineRecorder:
    """Tells the recording process of one engine's iterations and requests.

    An adapter, or engine_api, owns it. Requests may begin and end in any thread; iterations come from one. Nothing
    blocks. Adapters catch what is raised: the engine's own objects may be anything.
    """

    def __init__(
        self, channel: EngineChannel, engine: str, role: str = iteration_messages.ENGINE, version: str = ""
    ) -> None:
        self._channel = channel
        self._key = os.urandom(16) if os.environ.get(REQUESTS_VARIABLE) != "plain" else b""
        self._numbers: dict[str, int] = {}
        #: Requests that are over and may be in iterations under way: their number, and the last of these iterations.
        self._ended: dict[str, tuple[int, int]] = {}
        self._request_numbers = itertools.count(1)
        self._iteration = 0
        self._newest_over = -1
        self._tokens: Mapping[str, int] = {}
        self._was_same = False
        self._end_ns = 0
        self._left = False
        self._place: dict[str, Any] = {}
        self._gpu: GpuEvents | None = None
        self._gpu_failed = False
        self._gpu_timed: set[int] = set()
        self._gpu_times: list[tuple[int, int, int]] = []
        versions = {engine: version, "python": sys.version.split()[0]}
        started_ns = process_info.started_ns(os.getpid())
        channel.send_json(b"J", {"event": "attached", "pid": os.getpid(), "engine": engine, "role": role,
                                 "versions": versions, "started_ns": started_ns})  # fmt: skip

    def begin_request(self, request: str, start_ns: int = 0, **facts: Any) -> None:
        """Tell that a request came. `facts`: model, adapter, tenant, route, traceparent, prompt_tokens."""
        if request in self._numbers:
            return
        number = self._numbers[request] = next(self._request_numbers)  # several threads may be here
        known = {name: _short(value, MOST_OF_NAME) for name, value in facts.items() if value not in ("", None)}
        if trace := facts.get("traceparent"):
            known["traceparent"] = _short(trace, MOST_OF_TRACE)
        begun = {"n": number, "id": self._public(request), "time_ns": start_ns or time.time_ns()}
        self._channel.send_json(b"R", {**known, **begun})

    def got_first_token(self, requests: Iterable[str], time_ns: int) -> None:
        """Tell which requests have their first token."""
        numbers = [number for request in requests if (number := self._numbers.get(request))]
        if numbers:
            self._channel.send(iteration_messages.FIRST.pack(b"T", time_ns) + array("I", numbers).tobytes())

    def end_request(self, request: str, outcome: str, output_tokens: int, end_ns: int = 0, **facts: int) -> None:
        """Tell that a request is over; iterations under way may have it yet.

        `facts`: cached_tokens, preemptions, prompt_tokens.
        """
        number = self._numbers.pop(request, 0)
        if not self._numbers:
            self._left = False  # the time until the next iteration is no gap
        if number:
            if self._iteration - 1 > self._newest_over:  # where batches overlap, the next one may hold it yet
                self._ended[request] = (number, self._iteration - 1)
            ended = {"n": number, "time_ns": end_ns or time.time_ns(), "outcome": _short(outcome, MOST_OF_NAME)}
            self._channel.send_json(b"E", {**facts, **ended, "output_tokens": output_tokens})

    def next_iteration(self) -> int:
        """Return the number of an iteration that was scheduled now, and is over later."""
        self._iteration += 1
        return self._iteration - 1

    def iteration(self, facts: BatchFacts, tokens: Mapping[str, int], prefill: Mapping[str, int]) -> None:
        """Tell that an iteration is over.

        Args:
            facts: what is known of it. Where iterations overlap, it begins on the host when the one before has ended.
            tokens: request -> tokens that were computed of it. It must not change later.
            prefill: request -> tokens of its prompt among them; requests without such are left out.
        """
        number = facts.number if facts.number >= 0 else self.next_iteration()
        start_ns, end_ns = max(facts.start_ns, self._end_ns), facts.end_ns or time.time_ns()
        gap_ns = start_ns - self._end_ns if self._left and self._end_ns else 0
        same = bool(not prefill and self._was_same and tokens == self._tokens)
        flags = (SAME_BATCH if same else 0) | (GPU_FOLLOWS if number in self._gpu_timed else 0)
        self._gpu_timed.discard(number)
        phase = PHASES.index(_phase(tokens, prefill, facts.draft_tokens))
        message = iteration_messages.ITERATION.pack(
            b"I", flags, phase, number, start_ns, max(end_ns - start_ns, 0), gap_ns, facts.schedule_ns,
            facts.output_tokens, facts.draft_tokens, facts.kv_used, facts.kv_total, facts.waiting, facts.preempted,
            len(tokens), len(prefill),
        )  # fmt: skip
        if not same:
            message += self._pairs(tokens, number) + self._pairs(prefill, number)
        lost = self._channel.lost[0]
        self._channel.send(message)
        # A batch is the same as the one before only if that one was sent.
        self._tokens, self._was_same = tokens, not prefill and self._channel.lost[0] == lost
        self._end_ns, self._left = end_ns, len(self._numbers) > 0
        self._newest_over = max(self._newest_over, number)
        for request, (_, last) in list(self._ended.items()):
            if last <= self._newest_over:
                del self._ended[request]
        self._send_gpu_times()

    def begin_gpu(self, stream: Any = None) -> Any:
        """Record where an iteration begins on the GPU; None where it has no GPU time."""
        if self._gpu is None and not self._gpu_failed:
            self._gpu = gpu_events()
        return self._on_gpu(self._gpu.begin, stream) if self._gpu is not None else None

    def end_gpu(self, number: int, begin: Any, stream: Any = None) -> None:
        """Record where iteration `number` ends on the GPU; call it before `iteration`. `begin`: from `begin_gpu`."""
        if begin is not None and self._gpu is not None:
            self._on_gpu(self._gpu.end, number, begin, stream)
            if self._gpu is not None:
                self._gpu_timed.add(number)

    def publish_place(self) -> None:
        """Tell rank and GPU once they are known, or have changed."""
        place: dict[str, Any] = dict(process_info.place())
        torch = sys.modules.get("torch")
        with suppress(Exception):
            if torch is not None and torch.cuda.is_initialized():
                place["device"] = torch.cuda.current_device()
        if place and place != self._place:
            self._place = place
            gpus = {"gpus": process_info.gpus()} if "device" in place else {}
            self._channel.send_json(b"J", {"event": "place", **place, **gpus})

    def close(self) -> None:
        """Send what is known, and end."""
        with suppress(Exception):
            self._send_gpu_times()
        self._channel.close()

    def _on_gpu(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the timer; after what torch raises, such as for a second GPU, there are no GPU times."""
        try:
            return call(*arguments)
        except Exception:
            self._gpu, self._gpu_failed = None, True
            self._gpu_timed.clear()
            return None

    def _send_gpu_times(self) -> None:
        """Send times of iterations that were sent. The next one may be over on the GPU already."""
        if self._gpu is None:
            return
        times = self._gpu_times + (self._on_gpu(self._gpu.read) or [])
        self._gpu_times = [timed for timed in times if timed[0] in self._gpu_timed][-MOST_PENDING:]
        if ready := [timed for timed in times if timed[0] not in self._gpu_timed]:
            self._channel.send(b"G" + b"".join(iteration_messages.GPU.pack(*timed) for timed in ready))

    def _pairs(self, tokens: Mapping[str, int], iteration: int) -> bytes:
        numbers = self._numbers
        over = {request: number for request, (number, last) in self._ended.items() if iteration <= last}
        flat: list[int] = []
        for request, count in tokens.items():
            flat += (over.get(request) or numbers.get(request, 0), count)
        return array("I", flat).tobytes()

    def _public(self, request: str) -> str:
        if not self._key:
            return str(_short(request, MOST_OF_NAME))
        return hashlib.blake2b(request.encode(errors="replace"), key=self._key, digest_size=8).hexdigest()


def _phase(tokens: Mapping[str, int], prefill: Mapping[str, int], draft_tokens: int) -> str:
    if not tokens:
        return "other"
    if prefill:
        decodes = len(tokens) > len(prefill) or sum(tokens.values()) > sum(prefill.values())
        return "mixed" if decodes else "prefill"
    return "speculative" if draft_tokens > 0 else "decode"


def _short(value: Any, length: int) -> Any:
    return value if isinstance(value, (int, float)) else str(value).encode(errors="replace").decode()[:length]


def is_wanted(environment: Mapping[str, str]) -> bool:
    """Return whether engines of this process are to be recorded: `drumline run` prepared it, with a policy but off."""
    return bool(
        environment.get("DRUMLINE_PYTHON")
        and environment.get("DRUMLINE_COLLECT__POLICY", "") != "off"
        and environment.get(REQUESTS_VARIABLE) != "off"
    )


def open_recorder(engine: str, role: str = iteration_messages.ENGINE, version: str = "") -> EngineRecorder | None:
    """Return a recorder of this process's engine; None where it is not to be recorded. Raises OSError."""
    return EngineRecorder(open_channel(), engine, role, version) if is_wanted(os.environ) else None
