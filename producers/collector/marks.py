"""Marks of the job's own code: steps, named ranges, replays of CUDA graphs.

There is one way to mark, and two sinks: the ring of this process, which NCCL's operations are written to as well
(producers/nccl_profiler), and the decoder while CUPTI is attached. A mark never raises and never waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from drumline.producers.collector import host_time
from drumline.producers.ipc.events import FIRST_MARK_ID, MARK_BEGIN, MARK_END
from drumline.producers.nccl_profiler.library import GRAPH_REPLAY, RANGE_BEGIN, RANGE_END, STEP_MARK

#: Where the numbers of steps come from.
FROM_OPTIMIZER, FROM_API = 0, 1
#: Time between two calls of `at_mark`, as long as between two looks of a decoder at its control file; s.
SCAN_S = 0.25

#: Takes (kind, number, name, source of the step) for the ring; None without one.
ring: Callable[[int, int, str, int], object] | None = None
#: Takes (MARK_BEGIN or MARK_END, id, name) for the decoder; None while CUPTI is not attached.
decoder: Callable[[int, int, str], object] | None = None
#: Called about four times a second, in the thread of the job that marks; None = never.
at_mark: Callable[[], object] | None = None
#: Called once, in the thread of the job that marks the next step, between it and the one before; None = not.
at_next_step: Callable[[], object] | None = None
#: Attribute of a graph: numbers of NCCL's calls in the ring before and after its capture.
CAPTURED = "_drumline_captured"
#: True once a CUDA graph was captured in this process.
graph_was_captured = False

_ids = iter(range(FIRST_MARK_ID, 1 << 32))
_scan_at = 0.0
_api_numbers_steps = False


class StepSeries:
    """Steps of one source; each ends where the next begins. Its mark carries the host's time in the one before."""

    def __init__(self, name: str, source: int) -> None:
        self._name, self._source, self._id = name, source, 0
        self._host: tuple[int, ...] = ()

    def begin(self, number: int) -> None:
        """Begin a step. Where the job numbers its steps itself, those of optimizers are not in the ring."""
        global _api_numbers_steps, at_next_step
        _scan()
        if at_next_step is not None:
            call, at_next_step = at_next_step, None
            with contextlib.suppress(Exception):
                call()
        if self._source == FROM_API:
            _api_numbers_steps = True
        sums, self._host = host_time.since(self._host)
        if self._source == FROM_API or not _api_numbers_steps:
            _to_ring(STEP_MARK, number, sums, self._source)
        if decoder is not None:
            if self._id:
                decoder(MARK_END, self._id, sums)
            self._id = _new_id()
            decoder(MARK_BEGIN, self._id, f"{self._name} {number}")


_steps = StepSeries("step", FROM_API)


def step(number: int) -> None:
    """Begin step `number` and end the one before. Does nothing while nothing is attached."""
    if ring is not None or decoder is not None or at_mark is not None:
        _steps.begin(number)


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Mark a named range of host time. Does nothing while nothing is attached."""
    if ring is None and decoder is None:
        yield
        return
    _scan()
    number, taken_by = _new_id(), decoder
    _to_ring(RANGE_BEGIN, number, name)
    if taken_by is not None:
        taken_by(MARK_BEGIN, number, name)
    try:
        yield
    finally:
        _to_ring(RANGE_END, number, "")
        if taken_by is not None:
            taken_by(MARK_END, number, "")


def graph_replayed(graph: Any) -> None:
    """Mark the replay of a CUDA graph: NCCL reports its operations when they run, which may be steps later.

    They are known by the numbers that NCCL's calls had at the capture.
    """
    _scan()
    first, last = getattr(graph, CAPTURED, (0, 0))
    _to_ring(GRAPH_REPLAY, id(graph), "", first << 32 | last)


def _new_id() -> int:
    return next(_ids, FIRST_MARK_ID)


def _scan() -> None:
    global _scan_at
    if at_mark is not None and time.monotonic() >= _scan_at:
        _scan_at = time.monotonic() + SCAN_S
        with contextlib.suppress(Exception):
            at_mark()


def _to_ring(kind: int, number: int, name: str, source: int = 0) -> None:
    if ring is not None:
        with contextlib.suppress(Exception):  # what the job gives as a number or a name
            ring(kind, number, str(name), source)
