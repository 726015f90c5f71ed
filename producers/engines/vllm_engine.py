"""Adapter of vLLM's v1 engine: the scheduler tells of requests and batches, the worker of GPU time.

Joined after vllm's own modules were imported; none is imported here. Standard library only.

An iteration begins with Scheduler.schedule and ends with Scheduler.update_from_output of the same batch; with
asynchronous scheduling these overlap. Its number travels to workers as an attribute of the batch. Workers in
processes of their own send rows of their own, with GPU time; a worker in the engine's process gives it to the engine's.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from drumline.producers.collector import marks, process_info
from drumline.producers.engines.engine_recorder import BatchFacts, EngineRecorder, open_recorder
from drumline.producers.engines.iteration_messages import ENGINE, WORKER
from drumline.producers.engines.seams import around, check_version, join, method

NAME = "vllm"
#: Versions that were tried, or whose source has the same methods; docs/guide/inference.md lists which is which.
TRIED = tuple(f"0.{minor}" for minor in range(11, 33))
SCHEDULER, WORKERS = "vllm.v1.core.sched.scheduler", "vllm.v1.worker.gpu_worker"
#: Attribute of a batch: number of its iteration, and the tokens of prompts in it.
NOTE = "_drumline_iteration"

#: Recorder of this process; the engine's, else a worker's.
_recorder: EngineRecorder | None = None
_role = ""


def imported(module: Any) -> None:
    """Join one of vLLM's modules, which was just imported. Never raises."""
    join(NAME, lambda: _attach(module))


def _attach(module: Any) -> None:
    check_version(NAME, _version(), TRIED)
    if module.__name__ == SCHEDULER:
        kind = module.Scheduler
        method(kind, "add_request", ["request"])
        method(kind, "schedule", [])
        method(kind, "update_from_output", ["scheduler_output", "model_runner_output"])
        method(kind, "_free_request", ["request"])
        watch = SchedulerWatch()
        around(kind, "add_request", after=watch.added)
        around(kind, "schedule", watch.now, watch.scheduled)
        around(kind, "update_from_output", watch.updating, watch.updated)
        around(kind, "_free_request", watch.freed)
    elif module.__name__ == WORKERS:
        kind = module.Worker
        method(kind, "execute_model", ["scheduler_output"])
        method(kind, "sample_tokens", ["grammar_output"])
        watch_worker = WorkerWatch()
        around(kind, "execute_model", watch_worker.begins, watch_worker.executed)
        around(kind, "sample_tokens", None, watch_worker.sampled)


def _version() -> str:
    return str(getattr(sys.modules.get("vllm"), "__version__", ""))


def _open(role: str) -> EngineRecorder | None:
    global _recorder, _role
    if not _role:
        _role = role
        _recorder = open_recorder(NAME, role, _version())
    return _recorder


class SchedulerWatch:
    """Follows the scheduler in the engine's process, in its thread."""

    def __init__(self) -> None:
        self._waiting_for_token: dict[str, Any] = {}
        self._prefilling: dict[str, Any] = {}
        self._stats: dict[str, Any] = {}
        self._batches: dict[int, BatchFacts] = {}
        self._ended: list[Any] | None = None

    def added(self, note: Any, result: Any, scheduler: Any, request: Any) -> None:
        """Take a request that came."""
        recorder = _open(ENGINE)
        if recorder is None:
            return
        name, lora = request.request_id, request.lora_request
        headers = request.trace_headers or {}
        self._waiting_for_token[name] = self._prefilling[name] = request
        self._stats[name] = getattr(request, "prefill_stats", request)  # older ones count in the request
        recorder.begin_request(
            name,
            round(request.arrival_time * 1e9),
            model=_model_name(scheduler),
            adapter=getattr(lora, "lora_name", "") if lora else "",
            traceparent=headers.get("traceparent", ""),
            prompt_tokens=int(request.num_prompt_tokens),
        )

    def now(self, scheduler: Any, *arguments: Any, **named: Any) -> int:
        """Return the time before the scheduler is called."""
        return time.time_ns()

    def scheduled(self, began_ns: int, batch: Any, scheduler: Any, *arguments: Any, **named: Any) -> None:
        """Take the batch that the scheduler chose."""
        recorder = _open(ENGINE)
        if recorder is None or not batch.total_num_scheduled_tokens:
            return
        facts = BatchFacts(began_ns, number=recorder.next_iteration(), schedule_ns=time.time_ns() - began_ns)
        facts.waiting = scheduler.get_request_counts()[1]
        pool = scheduler.kv_cache_manager.block_pool
        facts.kv_total = pool.num_gpu_blocks
        facts.kv_used = pool.num_gpu_blocks - pool.get_num_free_blocks()
        if drafts := batch.scheduled_spec_decode_tokens:
            facts.draft_tokens = sum(map(len, drafts.values()))
        if lost := getattr(batch, "preempted_req_ids", None):
            facts.preempted = len(lost)
            for name in lost:
                if request := scheduler.requests.get(name):
                    self._prefilling[name] = request
        prefill = self._prompt_tokens(batch.num_scheduled_tokens)
        self._batches[facts.number] = facts
        setattr(batch, NOTE, (facts.number, prefill))

    def _prompt_tokens(self, tokens: dict[str, int]) -> dict[str, int]:
        """Return the tokens of prompts in a batch, and of what is computed again after a preemption."""
        prefill = {}
        for name, count in tokens.items():  # the queue may be far longer than the batch
            if (request := self._prefilling.get(name)) is None:
                continue
            left = int(request.num_tokens) - (int(request.num_computed_tokens) - count)
            prefill[name] = min(count, max(left, 0)) or count
            if request.num_computed_tokens >= request.num_tokens:
                del self._prefilling[name]
        return prefill

    def updating(self, scheduler: Any, *arguments: Any, **named: Any) -> None:
        """Keep the requests that end now until their iteration is told."""
        self._ended = []

    def updated(self, note: Any, result: Any, scheduler: Any, batch: Any, output: Any) -> None:
        """Take the end of an iteration: its results are in the requests."""
        recorder, ended = _open(ENGINE), self._ended or []
        self._ended = None
        if recorder is None:
            return
        number, prefill = getattr(batch, NOTE, (-1, {}))
        facts = self._batches.pop(number, None)
        if facts is not None:
            facts.end_ns = time.time_ns()
            if sampled := getattr(output, "sampled_token_ids", None):
                facts.output_tokens = sum(map(len, sampled))
            recorder.publish_place()
            recorder.iteration(facts, batch.num_scheduled_tokens, prefill)
            tokens = batch.num_scheduled_tokens
            waiting = self._waiting_for_token
            first = [name for name in tokens if (at := waiting.get(name)) is not None and at.num_output_tokens]
            recorder.got_first_token(first, facts.end_ns)
            for name in first:
                del self._waiting_for_token[name]
        for request in ended:
            self._end(recorder, request)

    def freed(self, scheduler: Any, request: Any, *arguments: Any, **named: Any) -> None:
        """Take a request that is over: inside update_from_output, or because it was aborted."""
        recorder = _open(ENGINE)
        if recorder is None:
            return
        if self._ended is None:
            self._end(recorder, request)
        else:
            self._ended.append(request)

    def _end(self, recorder: EngineRecorder, request: Any) -> None:
        name, reason = request.request_id, request.get_finished_reason()
        self._waiting_for_token.pop(name, None)
        self._prefilling.pop(name, None)
        stats = self._stats.pop(name, None)
        outcome = getattr(reason, "name", str(reason)).lower()
        recorder.end_request(
            name,
            outcome,
            int(request.num_output_tokens),
            preemptions=int(request.num_preemptions),
            cached_tokens=int(getattr(stats, "num_cached_tokens", -1)),
        )


class WorkerWatch:
    """Follows a worker, in its thread: what it gives the GPU between execute_model and the end of sampling."""

    def __init__(self) -> None:
        self._begin: Any = None
        self._began_ns = 0
        self._batch: Any = None

    def begins(self, worker: Any, batch: Any) -> None:
        """Take a batch before it is given to the GPU. With tensor parallelism an iteration is a step of the job."""
        self._batch = None
        number, _ = getattr(batch, NOTE, (-1, {}))
        if number < 0 or (recorder := _open(WORKER)) is None:
            return
        self._batch, self._began_ns = batch, time.time_ns()
        if process_info.place().get("world_size", 1) > 1:
            marks.step(number)
        self._begin = recorder.begin_gpu()

    def executed(self, note: Any, result: Any, worker: Any, batch: Any) -> None:
        """Take the end of the forward pass; where it gives None, sampling follows."""
        if result is not None:
            self.sampled(None, None, worker)

    def sampled(self, note: Any, result: Any, worker: Any, *arguments: Any, **named: Any) -> None:
        """Take the end of what is given to the GPU."""
        batch, self._batch = self._batch, None
        recorder = _recorder
        if batch is None or recorder is None:
            return
        number, prefill = getattr(batch, NOTE)
        recorder.end_gpu(number, self._begin)
        if _role == WORKER:
            recorder.publish_place()
            facts = BatchFacts(self._began_ns, time.time_ns(), number)
            recorder.iteration(facts, batch.num_scheduled_tokens, prefill)


def _model_name(scheduler: Any) -> str:
    """Return the model's name without its folder."""
    config = scheduler.vllm_config.model_config
    served = config.served_model_name or config.model
    return str(served[0] if isinstance(served, list) else served).rstrip("/").rpartition("/")[2]
