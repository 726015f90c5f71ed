"""Calls for inference engines of one's own: `drumline.request` and `drumline.iteration`. Standard library only.

They do nothing where the process is not below `drumline run`, and never raise.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from drumline.producers.engines.engine_recorder import BatchFacts, EngineRecorder, open_recorder
from drumline.producers.ipc.events import warn

_recorders: dict[str, EngineRecorder | None] = {}


def _recorder(engine: str) -> EngineRecorder | None:
    if engine not in _recorders:
        _recorders[engine] = None
        try:
            _recorders[engine] = open_recorder(engine)
        except Exception as error:
            warn(f"iterations and requests are not recorded: {type(error).__name__}: {error}")
    return _recorders[engine]


class ServedRequest:
    """A request of an engine of one's own; `with` ends it. Methods may be called from any thread and never raise."""

    def __init__(self, request_id: str, recorder: EngineRecorder | None) -> None:
        self._id, self._recorder = request_id, recorder
        self._tokens = 0
        self._is_over = False

    def token(self, count: int = 1) -> None:
        """Count tokens that the request got; the first call tells of its first one."""
        with contextlib.suppress(Exception):
            if not self._tokens and count > 0 and self._recorder is not None:
                self._recorder.got_first_token([self._id], time.time_ns())
            self._tokens += count

    def end(self, outcome: str = "stop") -> None:
        """End the request, once. `outcome`: stop, length, abort, error, or a word of the engine."""
        with contextlib.suppress(Exception):
            if not self._is_over and self._recorder is not None:
                self._is_over = True
                self._recorder.end_request(self._id, outcome, self._tokens)

    def __enter__(self) -> ServedRequest:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.end("stop" if kind is None else "error")


def request(
    request_id: str,
    *,
    prompt_tokens: int = -1,
    model: str = "",
    adapter: str = "",
    tenant: str = "",
    route: str = "",
    traceparent: str = "",
    engine: str = "own",
) -> ServedRequest:
    """Begin a request, and return it; call `token` and `end` on it.

    Args:
        request_id: unique among the requests that are under way; rows have a hash of it.
        prompt_tokens: tokens of the prompt; -1 = not known.
        model, adapter, tenant, route: names by which cost is asked for.
        traceparent: W3C trace context of the caller.
        engine: name of the engine, the same in `iteration`.
    """
    recorder = None
    with contextlib.suppress(Exception):
        recorder = _recorder(engine)
        if recorder is not None:
            recorder.begin_request(
                str(request_id), model=model, adapter=adapter, tenant=tenant, route=route, traceparent=traceparent,
                prompt_tokens=int(prompt_tokens),
            )  # fmt: skip
    return ServedRequest(str(request_id), recorder)


@contextlib.contextmanager
def iteration(
    tokens: Mapping[str, int], *, prefill: Mapping[str, int] | None = None, engine: str = "own", **facts: int
) -> Iterator[None]:
    """Mark an iteration of the engine: one forward pass for a batch of requests.

    Args:
        tokens: request id -> tokens that it computes.
        prefill: request id -> tokens of its prompt among them.
        engine: name of the engine.
        facts: waiting, kv_used, kv_total, preempted, schedule_ns, output_tokens, draft_tokens.
    """
    recorder, begin, began_ns = None, None, time.time_ns()
    with contextlib.suppress(Exception):
        recorder = _recorder(engine)
        begin = recorder.begin_gpu() if recorder is not None else None
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            if recorder is not None:
                number = recorder.next_iteration()
                recorder.end_gpu(number, begin)
                recorder.publish_place()
                recorder.iteration(BatchFacts(began_ns, time.time_ns(), number, **facts), dict(tokens), prefill or {})
