"""Adapter of transformers' plain `generate()`: each row of its batch is a request, each forward pass an iteration.

Joined after transformers' own module was imported; none is imported here. Standard library only.

The loop asks _has_unfinished_sequences before each forward pass but the first, which _prefill made: between two such
calls lies an iteration. Tokens of a row are those of the longest row, since asking for more would wait for the GPU. The
loops of an assistant model are part of the iteration that calls it.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from drumline.producers.engines.engine_recorder import BatchFacts, EngineRecorder, open_recorder
from drumline.producers.engines.seams import around, is_tried, join, method
from drumline.producers.engines.transformers_batching import NAME, TRIED, version


def imported(module: Any) -> None:
    """Join transformers.generation.utils, which was just imported. Never raises."""
    if is_tried(NAME, version(), TRIED, getattr(module, "GenerationMixin", None), "generate"):
        join(NAME, lambda: _attach(module))


def _attach(module: Any) -> None:
    kind = module.GenerationMixin
    method(kind, "generate", ["inputs"])
    method(kind, "_prefill", ["input_ids"])
    method(kind, "_has_unfinished_sequences", ["this_peer_finished"])
    watch = GenerateWatch()
    around(kind, "generate", watch.called, watch.returned, watch.raised)
    around(kind, "_prefill", watch.prefills)
    around(kind, "_has_unfinished_sequences", watch.goes_on)


class _GenerateCall(threading.local):
    """Holds the call of `generate` that this thread is in."""

    depth = 0
    names: tuple[str, ...] = ()
    prompt = 0
    passes = 0
    began_ns = 0
    facts: BatchFacts | None = None
    begin: Any = None


class GenerateWatch:
    """Follows `generate` in every thread that calls it; a lock keeps their messages apart."""

    def __init__(self) -> None:
        self._call = _GenerateCall()
        self._lock = threading.Lock()
        self._recorder: EngineRecorder | None = None
        self._is_opened = False
        self._numbers = itertools.count(1)

    def called(self, model: Any, *arguments: Any, **named: Any) -> None:
        """Take the begin of a call."""
        call = self._call
        call.depth += 1
        if call.depth == 1:
            call.names, call.passes, call.facts, call.began_ns = (), 0, None, time.time_ns()

    def prefills(self, model: Any, input_ids: Any, *arguments: Any, **named: Any) -> None:
        """Take the first forward pass: the batch is known."""
        call = self._call
        recorder = self._open()
        if recorder is None or call.depth != 1 or call.names:
            return
        rows, call.prompt = (int(size) for size in input_ids.shape[:2])
        name = str(getattr(model.config, "_name_or_path", "")).rstrip("/").rpartition("/")[2]
        with self._lock:
            call.names = tuple(f"generate-{next(self._numbers)}" for _ in range(rows))
            for request in call.names:
                recorder.begin_request(request, call.began_ns, model=name, prompt_tokens=call.prompt)
            self._begin(recorder)

    def goes_on(self, model: Any, *arguments: Any, **named: Any) -> None:
        """Take the end of a forward pass and what follows it, and the begin of the next."""
        call, recorder = self._call, self._recorder
        if recorder is None or call.depth != 1 or call.facts is None:
            return
        call.passes += 1
        if call.passes > 1:  # the first call comes right after the prefill, before its token is chosen
            with self._lock:
                self._end_pass(recorder)
                self._begin(recorder)

    def returned(self, note: Any, result: Any, model: Any, *arguments: Any, **named: Any) -> None:
        """Take the end of a call."""
        self._ends("stop")

    def raised(self) -> None:
        """Take a call that raised."""
        self._ends("error")

    def _ends(self, outcome: str) -> None:
        call, recorder = self._call, self._recorder
        call.depth = max(call.depth - 1, 0)
        if call.depth or recorder is None or not call.names:
            return
        tokens = max(call.passes - 1, 0)
        with self._lock:
            for request in call.names:
                recorder.end_request(request, outcome, tokens)
        call.names, call.facts = (), None

    def _begin(self, recorder: EngineRecorder) -> None:
        self._call.facts = BatchFacts(time.time_ns(), number=recorder.next_iteration())
        self._call.begin = recorder.begin_gpu()

    def _end_pass(self, recorder: EngineRecorder) -> None:
        call, facts = self._call, self._call.facts
        if facts is None:
            return
        facts.end_ns, facts.output_tokens = time.time_ns(), len(call.names)
        recorder.end_gpu(facts.number, call.begin)
        is_first = call.passes == 2
        tokens = dict.fromkeys(call.names, call.prompt if is_first else 1)
        recorder.publish_place()
        recorder.iteration(facts, tokens, tokens if is_first else {})
        if is_first:
            recorder.got_first_token(call.names, facts.end_ns)

    def _open(self) -> EngineRecorder | None:
        if not self._is_opened:
            with self._lock:
                if not self._is_opened:
                    self._recorder = open_recorder(NAME, version=version())
                    self._is_opened = True
        return self._recorder
