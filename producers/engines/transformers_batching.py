"""Adapter of transformers' continuous batching: `generate_batch`, its manager, and `transformers serve` with it.

Joined after transformers' own modules were imported; none is imported here. Standard library only.

An iteration begins with prepare_next_batch and ends with update_batch of the same batch; with asynchronous batching
these overlap. With tensor parallelism every rank schedules the same batches: the rank that takes requests is the
engine, the others are workers. Iterations are the steps of such a job.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextvars import ContextVar
from typing import Any

from drumline.producers.collector import marks, process_info
from drumline.producers.engines.engine_recorder import BatchFacts, EngineRecorder, open_recorder
from drumline.producers.engines.iteration_messages import ENGINE, WORKER
from drumline.producers.engines.seams import around, is_tried, join, method

NAME = "transformers"
#: Versions that were tried; docs/guide/inference.md says how.
TRIED = ("5.17", "5.18", "5.19")
BATCHING, SERVER = "transformers.generation.continuous_batching.continuous_api", "transformers.cli.serving.server"
#: Least status of a request that is over, and the one that failed (RequestStatus).
FINISHED, FAILED = 3, 4

#: Trace context of the HTTP request that is handled now, as its caller sent it.
_traceparent: ContextVar[str] = ContextVar("traceparent", default="")


def imported(module: Any) -> None:
    """Join one of transformers' modules, which was just imported. Never raises."""
    if is_tried(NAME, version(), TRIED, getattr(module, "ContinuousBatchingManager", None), "start"):
        join(NAME, lambda: _attach(module))


def version() -> str:
    """Return the version of transformers in this process; "" if there is none."""
    return str(getattr(sys.modules.get("transformers"), "__version__", ""))


def _attach(module: Any) -> None:
    if module.__name__ == SERVER:
        _watch_server(module)
        return
    processor, scheduler, runner = module.ContinuousBatchProcessor, module.Scheduler, module.ModelRunner
    manager = module.ContinuousBatchingManager
    method(manager, "add_request", ["input_ids", "request_id"])
    method(processor, "prepare_next_batch", [])
    method(processor, "update_batch", [])
    method(scheduler, "add_waiting_request", ["state"])
    method(scheduler, "clear_cancelled_requests", [])
    method(runner, "compute_batch", ["model", "batch_data"])
    watch = BatchingWatch()
    around(processor, "__init__", after=watch.created)
    around(processor, "prepare_next_batch", watch.now, watch.prepared)
    around(processor, "update_batch", watch.batch_of_update, watch.updated)
    around(scheduler, "add_waiting_request", watch.came)
    around(scheduler, "clear_cancelled_requests", after=watch.cancelled)
    around(module.OutputRouter, "fail_and_deliver", watch.failed)
    around(runner, "compute_batch", watch.gives_gpu, watch.gave_gpu)
    around(manager, "add_request", watch.comes, watch.taken)


class BatchingWatch:
    """Follows the processor of continuous batching, in its thread; requests come in others."""

    def __init__(self) -> None:
        self._recorder: EngineRecorder | None = None
        self._is_opened = False
        self._role = ENGINE
        self._model = ""
        self._batches: deque[tuple[BatchFacts, dict[str, int], dict[str, int]]] = deque()
        self._prompts: dict[str, int] = {}
        self._cached: dict[str, int] = {}
        self._preemptions: dict[str, int] = {}
        self._first: set[str] = set()
        self._traces: dict[str, str] = {}
        self._preempted = 0
        self._begin: Any = None

    def created(self, note: Any, result: Any, processor: Any, *arguments: Any, **named: Any) -> None:
        """Take a new processor: whether it is the one that takes requests."""
        self._model = str(getattr(processor.config, "_name_or_path", "")).rstrip("/").rpartition("/")[2]
        if not self._is_opened:
            self._is_opened = True
            self._role = ENGINE if processor.input_queue is not None else WORKER
            self._recorder = open_recorder(NAME, self._role, version())
        self._batches.clear()

    def comes(self, manager: Any, input_ids: Any = None, request_id: Any = None, *arguments: Any, **named: Any) -> str:
        """Take the trace context of a request, before the scheduler's thread sees it. The server names each request."""
        if request_id is not None and (trace := _traceparent.get()):
            self._traces[str(request_id)] = trace
        return str(request_id)

    def taken(self, name: str, result: Any, *arguments: Any, **named: Any) -> None:
        """Forget the trace context of a request that was not taken."""
        if result is None:
            self._traces.pop(name, None)

    def came(self, scheduler: Any, state: Any) -> None:
        """Take a request that came, or one that lost its blocks and comes again."""
        name, recorder = state.request_id, self._recorder
        if recorder is None:
            return
        if name in self._prompts:
            self._preempted += 1
            self._preemptions[name] = self._preemptions.get(name, 0) + 1
            self._prompts[name] = len(state.initial_tokens)
            return
        self._prompts[name] = len(state.initial_tokens)
        self._first.add(name)
        if self._role == ENGINE:
            age_ns = round((time.perf_counter() - state.created_time) * 1e9)
            recorder.begin_request(
                name,
                time.time_ns() - max(age_ns, 0),
                model=self._model,
                traceparent=self._traces.pop(name, ""),
                prompt_tokens=len(state.initial_tokens),
            )

    def now(self, processor: Any) -> int:
        """Return the time before a batch is prepared."""
        return time.time_ns()

    def prepared(self, began_ns: int, is_ready: bool, processor: Any) -> None:
        """Take the batch that was prepared."""
        recorder = self._recorder
        if recorder is None or not is_ready:
            return
        tokens: dict[str, int] = {}
        prefill: dict[str, int] = {}
        for future in _host_io(processor.inputs_and_outputs).requests_in_batch:
            name, count = future.state.request_id, future.query_length
            tokens[name] = count
            left = self._prompts.get(name, 0)
            if left > 0:
                self._cached.setdefault(name, future.state.position_offset - count)
                if future.state.position_offset - count >= left:  # computed before: it comes again from the host
                    left = count
                prefill[name] = count
                self._prompts[name] = 0 if future.has_new_token else left
        facts = BatchFacts(began_ns, number=recorder.next_iteration(), schedule_ns=time.time_ns() - began_ns)
        facts.waiting = len(processor.scheduler.waiting_requests)
        facts.preempted, self._preempted = self._preempted, 0
        facts.kv_total, facts.kv_used = _blocks(processor.cache)
        self._batches.append((facts, tokens, prefill))
        if process_info.place().get("world_size", 1) > 1:
            marks.step(facts.number)

    def gives_gpu(self, runner: Any, *arguments: Any, **named: Any) -> None:
        """Record where the newest batch begins on the GPU."""
        self._begin = None
        if self._recorder is not None and self._batches:
            self._begin = self._recorder.begin_gpu(runner.inputs_and_outputs.compute_stream)

    def gave_gpu(self, note: Any, result: Any, runner: Any, *arguments: Any, **named: Any) -> None:
        """Record where it ends on the GPU."""
        if self._recorder is not None and self._begin is not None and self._batches:
            number = self._batches[-1][0].number
            self._recorder.end_gpu(number, self._begin, runner.inputs_and_outputs.compute_stream)

    def batch_of_update(self, processor: Any) -> Any:
        """Return the requests of the batch whose results are taken now."""
        return list(_host_io(processor.inputs_and_outputs).requests_in_batch)

    def updated(self, futures: Any, result: Any, processor: Any) -> None:
        """Take the end of the oldest iteration: its results are in the requests."""
        recorder = self._recorder
        if recorder is None or not self._batches:
            return
        facts, tokens, prefill = self._batches.popleft()
        facts.end_ns = time.time_ns()
        facts.output_tokens = sum(1 for future in futures or () if future.has_new_token)
        recorder.publish_place()
        recorder.iteration(facts, tokens, prefill)
        if self._first:
            names = [f.state.request_id for f in futures or () if f.has_new_token and f.state.request_id in self._first]
            recorder.got_first_token(names, facts.end_ns)
            self._first.difference_update(names)
        for future in futures or ():
            if future.state.status >= FINISHED:
                self._end(future.state)

    def cancelled(self, note: Any, states: Any, scheduler: Any) -> None:
        """Take requests that were cancelled."""
        for state in states or ():
            self._end(state, "abort")

    def failed(self, router: Any, state: Any, error: Any) -> None:
        """Take a request that failed."""
        self._end(state, "error")

    def _end(self, state: Any, outcome: str = "") -> None:
        name = state.request_id
        if self._recorder is None or name not in self._prompts:
            return
        del self._prompts[name]
        self._first.discard(name)
        count = state.generated_len() + max(len(state.initial_tokens) - (state._true_initial_tokens or 1 << 62), 0)
        limit = state.max_new_tokens
        facts = {"cached_tokens": self._cached.pop(name, 0), "preemptions": self._preemptions.pop(name, 0)}
        outcome = outcome or ("error" if state.status == FAILED else "length" if count == limit else "stop")
        self._recorder.end_request(name, outcome, int(count), **facts)


def _host_io(batch_io: Any) -> Any:
    """Return the object with the newest batch: one of a pair where batching is asynchronous."""
    pairs = getattr(batch_io, "io_pairs", None)
    return pairs[batch_io.current_pair].host_io if pairs else batch_io


def _blocks(cache: Any) -> tuple[int, int]:
    """Return blocks of the cache, and those in use; -1 = not known. 5.19 counts sectors, which hold several blocks."""
    pool = getattr(cache, "pool", None)
    if pool is not None:
        return int(pool.num_sectors), int(pool.num_sectors - pool.num_free_sectors)
    if hasattr(cache, "get_num_free_blocks"):
        return int(cache.num_blocks), int(cache.num_blocks - cache.get_num_free_blocks())
    return -1, -1


class TraceContext:
    """ASGI middleware of `transformers serve`: keeps the caller's trace context for the requests that it asks for."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope.get("type") == "http":
            for name, value in scope.get("headers") or ():
                if name == b"traceparent":
                    _traceparent.set(value.decode("latin-1"))
        await self.app(scope, receive, send)


def _watch_server(module: Any) -> None:
    build = module.build_server

    def build_server(*arguments: Any, **named: Any) -> Any:
        app = build(*arguments, **named)
        app.add_middleware(TraceContext)
        return app

    module.build_server = build_server
