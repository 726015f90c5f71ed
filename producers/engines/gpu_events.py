"""GPU time of iterations by two CUDA events each, read once they are over. Standard library only; torch is the job's.

An event is recorded in the stream of the model and costs a few microseconds. Nothing waits for the GPU: an event is
asked whether it is over when the next iteration begins or ends. The time from the end of an iteration to the begin of
the next is what the GPU had nothing of the engine to do.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, NamedTuple

#: Most iterations whose events are not over; beyond it iterations have no GPU time.
MOST_PENDING = 256
NOT_KNOWN = -1
_NS_PER_MS = 1_000_000


class _Timed(NamedTuple):
    """Holds an iteration's number and its two events."""

    number: int
    begin: Any
    end: Any


class GpuEvents:
    """Times the iterations of one process on its GPU. Owned by a recorder, in the thread of the engine.

    Raises what torch raises; a recorder then goes on without GPU times.
    """

    def __init__(self, cuda: Any) -> None:
        """`cuda`: the module torch.cuda."""
        self._cuda = cuda
        self._free: list[Any] = []
        self._pending: deque[_Timed] = deque()
        self._last_end: Any = None

    def begin(self, stream: Any = None) -> Any:
        """Record the begin of an iteration in a stream, without one in the current stream; None where that may not be.

        While a CUDA graph is captured an event would become part of it.
        """
        if len(self._pending) >= MOST_PENDING or self._cuda.is_current_stream_capturing():
            return None
        event = self._event()
        event.record(stream) if stream is not None else event.record()
        return event

    def end(self, number: int, begin: Any, stream: Any = None) -> None:
        """Record the end of the iteration whose begin is `begin`."""
        event = self._event()
        event.record(stream) if stream is not None else event.record()
        self._pending.append(_Timed(number, begin, event))

    def read(self) -> list[tuple[int, int, int]]:
        """Return (number, GPU time, idle time before it) of the iterations that are over; ns."""
        times = []
        while self._pending and self._pending[0].end.query():
            timed, before = self._pending.popleft(), self._last_end
            idle_ns = NOT_KNOWN
            if before is not None:
                idle_ns = max(0, round(before.elapsed_time(timed.begin) * _NS_PER_MS))
                self._free.append(before)
            gpu_ns = max(0, round(timed.begin.elapsed_time(timed.end) * _NS_PER_MS))
            times.append((timed.number, gpu_ns, idle_ns))
            self._free.append(timed.begin)
            self._last_end = timed.end
        return times

    def _event(self) -> Any:
        return self._free.pop() if self._free else self._cuda.Event(enable_timing=True)


def gpu_events() -> GpuEvents | None:
    """Return a timer if the process has loaded torch and begun to use CUDA; torch is never imported here."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return None
    return GpuEvents(cuda)
