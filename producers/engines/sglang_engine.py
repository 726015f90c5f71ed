"""Adapter of SGLang: each scheduler's process has requests, batches and the GPU of one rank.

Joined after sglang's scheduler was imported; none of it is imported here. Standard library only.

An iteration begins with Scheduler.get_next_batch_to_run and ends with process_batch_result of the same batch; with the
overlap schedule the next batch is launched in between. Each rank schedules the same batches: the first one, which
answers requests, is the engine, the others are workers.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from drumline.producers.collector import marks, process_info
from drumline.producers.engines.engine_recorder import BatchFacts, EngineRecorder, is_wanted, open_recorder
from drumline.producers.engines.iteration_messages import ENGINE, WORKER
from drumline.producers.engines.seams import around, check_version, join, method
from drumline.producers.engines.sglang_objects import (
    adapter_name,
    batch_tokens,
    kv_blocks,
    model_name,
    outcome,
    plain_mode,
    ranks,
    traceparent,
)

NAME = "sglang"
#: Versions whose source has these methods; docs/guide/inference.md says how each was checked.
TRIED = tuple(f"0.5.{patch}" for patch in range(4, 24))
#: Methods of Scheduler that are wrapped -> their first parameters.
SEAMS = {
    "_add_request_to_queue": ["req"],
    "get_next_batch_to_run": [],
    "update_running_batch": ["batch"],
    "run_batch": ["batch"],
    "launch_batch_sample_if_needed": ["batch_result"],
    "process_batch_result": ["batch", "result"],
    "abort_request": ["recv_req"],
}
#: Attribute of a batch's result: the iteration's facts, tokens by request, and tokens of prompts among them.
NOTE = "_drumline_iteration"


def imported(module: Any) -> None:
    """Join sglang's scheduler, which was just imported. Never raises."""
    join(NAME, lambda: _attach(module))


def _attach(module: Any) -> None:
    check_version(NAME, _version(), TRIED)
    kind, watch = module.Scheduler, RankWatch()
    for name, parameters in SEAMS.items():
        method(kind, name, parameters)
    around(kind, "_add_request_to_queue", after=watch.queued)
    around(kind, "get_next_batch_to_run", watch.now, watch.scheduled)
    around(kind, "update_running_batch", watch.reducing, watch.reduced)
    around(kind, "run_batch", watch.begins, watch.launched)
    around(kind, "launch_batch_sample_if_needed", after=watch.sampled)
    around(kind, "process_batch_result", watch.processing, watch.processed)
    around(kind, "abort_request", after=watch.aborted)


def _version() -> str:
    return str(getattr(sys.modules.get(NAME), "__version__", ""))


class RankWatch:
    """Follows the scheduler of one rank, in its thread."""

    def __init__(self) -> None:
        self._opened: EngineRecorder | None = None
        self._is_opened = self._is_engine = False
        self._requests: dict[str, Any] = {}
        self._queued: dict[str, Any] = {}
        self._without_token: set[str] = set()
        self._preemptions: dict[str, int] = {}
        self._preempted = 0
        self._chunked: Any = None
        self._began_ns = self._schedule_ns = 0
        self._unsampled: tuple[int, Any, Any] | None = None

    def _recorder(self, scheduler: Any) -> EngineRecorder | None:
        if not self._is_opened:
            self._is_opened = True
            if is_wanted(os.environ) and plain_mode(scheduler):
                self._is_engine = not any(ranks(scheduler))
                self._opened = open_recorder(NAME, ENGINE if self._is_engine else WORKER, _version())
        return self._opened

    def queued(self, note: Any, result: Any, scheduler: Any, req: Any, *arguments: Any, **named: Any) -> None:
        """Take a request that came, or one that lost its blocks and comes again."""
        recorder, name = self._recorder(scheduler), req.rid
        if recorder is None or not self._is_engine:
            return
        self._queued[name] = req
        if name in self._requests:
            self._preempted += 1
            self._preemptions[name] = self._preemptions.get(name, 0) + 1
            return
        self._requests[name] = req
        self._without_token.add(name)
        recorder.begin_request(
            name,
            time.time_ns(),
            model=model_name(scheduler),
            adapter=adapter_name(scheduler, req),
            traceparent=traceparent(req),
            prompt_tokens=len(req.origin_input_ids),
        )

    def now(self, scheduler: Any, *arguments: Any, **named: Any) -> int:
        """Return the time before the scheduler chooses a batch; it is asked all the time, also while idle."""
        return time.time_ns()

    def scheduled(self, began_ns: int, *arguments: Any, **named: Any) -> None:
        """Take how long that took. A prompt in chunks may have been cancelled between two of them."""
        self._began_ns, self._schedule_ns = began_ns, time.time_ns() - began_ns
        if (request := self._chunked) is not None and request.finished():
            self._chunked = None
            self._end(request.rid, outcome(request))

    def reducing(self, scheduler: Any, batch: Any) -> Any:
        """Return the requests that decode, before some lose their blocks."""
        return batch.reqs[:]

    def reduced(self, requests: Any, result: Any, scheduler: Any, batch: Any) -> None:
        """Take the requests that are given up as memory does not suffice: they are in no batch and no queue."""
        if len(batch.reqs) == len(requests):
            return
        left = {id(request) for request in batch.reqs}
        for request in requests:
            is_given_up = getattr(request, "to_finish", None) is not None and not request.finished()
            if is_given_up and id(request) not in left and request.rid not in self._queued:
                self._end(request.rid, "abort")

    def begins(self, scheduler: Any, batch: Any, *arguments: Any, **named: Any) -> Any:
        """Take a batch before it is launched; return its facts, tokens, tokens of prompts, and begin on the GPU."""
        recorder = self._recorder(scheduler)
        if recorder is None:
            return None
        began_ns, self._began_ns = self._began_ns or time.time_ns(), 0
        facts = BatchFacts(began_ns, number=recorder.next_iteration(), schedule_ns=self._schedule_ns)
        tokens, prefill, facts.draft_tokens = batch_tokens(scheduler, batch)
        if self._is_engine:
            self._chunked = batch.chunked_req or self._chunked  # others may decode between two chunks
            for name in tokens:
                self._queued.pop(name, None)
            self._drop_from_queue(scheduler)
            facts.preempted, self._preempted = self._preempted, 0
            facts.waiting = len(scheduler.waiting_queue)
            facts.kv_total, facts.kv_used = kv_blocks(scheduler)
        if process_info.place().get("world_size", 1) > 1:
            marks.step(facts.number)
        return facts, tokens, prefill, recorder.begin_gpu(_stream(scheduler))

    def launched(self, note: Any, result: Any, scheduler: Any, *arguments: Any, **named: Any) -> None:
        """Take the batch's launch; with a grammar its tokens are sampled later."""
        if note is None or (recorder := self._opened) is None:
            return
        facts, tokens, prefill, begin = note
        setattr(result, NOTE, (facts, tokens, prefill))
        self._unsampled = None
        if getattr(result, "delay_sample_func", None) is None:
            recorder.end_gpu(facts.number, begin, _stream(scheduler))
        else:
            self._unsampled = (facts.number, begin, result)

    def sampled(self, note: Any, done: Any, scheduler: Any, batch_result: Any, *rest: Any, **named: Any) -> None:
        """Take the end of sampling that was put off."""
        if self._unsampled is None or self._opened is None or self._unsampled[2] is not batch_result:
            return
        number, begin, _ = self._unsampled
        self._unsampled = None
        self._opened.end_gpu(number, begin, _stream(scheduler))

    def processing(self, scheduler: Any, batch: Any, result: Any, *arguments: Any, **named: Any) -> int:
        """Return how many tokens the requests of a batch have before its results are taken."""
        return sum(len(request.output_ids) for request in batch.reqs)

    def processed(self, before: Any, done: Any, scheduler: Any, batch: Any, result: Any, *a: Any, **n: Any) -> None:
        """Take the end of an iteration: its results are in the requests."""
        recorder, note = self._opened, getattr(result, NOTE, None)
        if recorder is None or note is None:
            return
        facts, tokens, prefill = note
        facts.end_ns = time.time_ns()
        facts.output_tokens = max(sum(len(request.output_ids) for request in batch.reqs) - (before or 0), 0)
        recorder.publish_place()
        recorder.iteration(facts, tokens, prefill)
        if not self._is_engine:
            return
        waiting = self._without_token
        first = [request.rid for request in batch.reqs if request.rid in waiting and len(request.output_ids)]
        recorder.got_first_token(first, facts.end_ns)
        waiting.difference_update(first)
        for request in batch.reqs:
            if request.finished():
                self._end(request.rid, outcome(request))

    def aborted(self, note: Any, result: Any, scheduler: Any, *arguments: Any, **named: Any) -> None:
        """Take requests that were cancelled in the queue; others end with a batch."""
        if self._is_engine and self._opened is not None:
            self._drop_from_queue(scheduler)

    def _drop_from_queue(self, scheduler: Any) -> None:
        """End the requests that left the queue without a batch: cancelled, too many, or waiting for too long."""
        if len(scheduler.waiting_queue) == len(self._queued):
            return
        left = {id(request) for request in scheduler.waiting_queue}
        for name in [name for name, request in self._queued.items() if id(request) not in left]:
            del self._queued[name]
            self._end(name, "abort")

    def _end(self, name: str, reason: str) -> None:
        if (request := self._requests.pop(name, None)) is None or self._opened is None:
            return
        self._without_token.discard(name)
        facts = {"cached_tokens": int(request.cached_tokens), "preemptions": self._preemptions.pop(name, 0)}
        self._opened.end_request(name, reason, len(request.output_ids), **facts)


def _stream(scheduler: Any) -> Any:
    """Return the stream of the model where it is not the current one: with the overlap schedule."""
    return scheduler.forward_stream if scheduler.enable_overlap else None
