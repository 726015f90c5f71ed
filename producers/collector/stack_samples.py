"""Samples of the Python stacks of this process, while a deep window asks for them.

A thread of its own takes the GIL 100 times a second and notes where the others are, with CUPTI's names of threads and
CUPTI's clock: so each launch finds the line that ran before it. A sampler outside the process knows neither.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import CodeType, FrameType

from drumline.producers.ipc.events import FRAMES, PLACE, SAMPLE, thread_name

#: Time between two samples: a hundred a second, as py-spy; s.
PERIOD_S = 0.01
#: Most frames of a stack, the innermost; most characters of a function and of a file, its last ones.
MOST_FRAMES, MOST_NAME, MOST_FILE = 64, 128, 256
#: Stacks that are remembered; then all are described again.
MOST_STACKS = 8_192


class ThreadSampler:
    """Samples while it is switched on; then nothing stays. `switch` may be called from any thread, one at a time.

    `send`: takes a message for the decoder and returns whether it was taken; must not raise or block.
    """

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        self._send, self._halt, self._is_on = send, threading.Event(), False
        self._numbers = itertools.count(1)
        self._known: dict[tuple[int, ...], int] = {}
        self._codes: dict[int, CodeType] = {}  # so that the id of one is never another's

    def switch(self, on: bool) -> None:
        """Begin or end to sample. Raises RuntimeError where Python starts no thread any more."""
        if on == self._is_on:
            return
        self._is_on = on
        if on:
            self._halt = threading.Event()
            threading.Thread(target=self._run, args=(self._halt,), name="drumline samples", daemon=True).start()
        else:
            self._halt.set()

    def sample(self, now_ns: int, frames: Mapping[int, FrameType]) -> None:
        """Send where these threads are. `frames`: innermost frames by `threading.get_ident`."""
        this_thread = threading.get_ident()
        parts = [SAMPLE.pack(b"S", now_ns, thread_name(threading.main_thread().ident or 0))]
        for thread, frame in frames.items():
            if thread != this_thread and (number := self._number(frame)):
                parts.append(PLACE.pack(thread_name(thread), number))
        self._send(b"".join(parts))

    def _run(self, halt: threading.Event) -> None:
        try:
            while not halt.wait(PERIOD_S):
                self.sample(time.time_ns(), sys._current_frames())
        except Exception:  # must not reach the job: launches have no stacks then, which their rows state
            return
        finally:
            self._known, self._codes = {}, {}

    def _number(self, frame: FrameType) -> int:
        """Return the number of a stack, which the decoder knows; 0 where it could not be sent."""
        stack: list[FrameType] = []
        key: list[int] = []
        at: FrameType | None = frame
        while at is not None and len(stack) < MOST_FRAMES:
            stack.append(at)
            key += (id(at.f_code), at.f_lasti)
            at = at.f_back
        places = tuple(key)
        if number := self._known.get(places):
            return number
        if len(self._known) >= MOST_STACKS:
            self._known, self._codes = {}, {}
        number = next(self._numbers)
        described = [
            (of.f_code.co_name[:MOST_NAME], of.f_code.co_filename[-MOST_FILE:], of.f_lineno or 0)
            for of in reversed(stack)
        ]
        if not self._send(FRAMES + json.dumps([number, described]).encode()):
            return 0
        self._codes.update((id(of.f_code), of.f_code) for of in stack)
        self._known[places] = number
        return number
