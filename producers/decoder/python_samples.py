"""Samples of a process's Python stacks, as its collector sends them, and which of them belongs to a launch."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from drumline.producers.ipc.events import FRAMES, PLACE, SAMPLE
from drumline.producers.stacks.folding import caller_of, folded
from drumline.producers.stacks.speedscope import MAX_FILE, MAX_NAME, PythonFrame, printable

#: Thread whose stack a launch has.
NO_THREADS, ITS_OWN, MAIN_THREADS = 0, 1, 2
#: Stacks that are remembered, the latest.
MOST_STACKS = 1 << 16


class Sampled(NamedTuple):
    """Sample that belongs to a launch: texts as in gpu.launch.v1. `age_ns`: from it to the launch; -1 = none."""

    stack: str = ""
    caller: str = ""
    owner: int = NO_THREADS
    age_ns: int = -1


class PythonSamples:
    """Keeps samples until `forget`. Owned by Session, in the decoder's only thread."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._rounds: list[tuple[int, dict[int, int]]] = []  # main thread, thread -> number of its stack
        self._texts: dict[int, tuple[str, str]] = {}

    def take(self, message: bytes) -> None:
        """Take a description of a stack, or a sample of all threads (ipc/events.py)."""
        if message[:1] == FRAMES:
            number, frames = json.loads(message[1:])
            stack = tuple(_frame(*frame) for frame in frames)
            self._texts[number] = folded(stack), caller_of(stack)
            if len(self._texts) > MOST_STACKS:
                del self._texts[min(self._texts)]
            return
        _, time_ns, main = SAMPLE.unpack_from(message)
        self._times.append(time_ns)
        self._rounds.append((main, dict(PLACE.iter_unpack(message[SAMPLE.size :]))))

    def before(self, thread: int, time_ns: int) -> Sampled:
        """Return the last sample before a launch: of its thread, else of the main one, which waits for it then."""
        at = bisect_right(self._times, time_ns) - 1
        if at < 0:
            return Sampled()
        main, numbers = self._rounds[at]
        age_ns = time_ns - self._times[at]
        for name, owner in ((thread, ITS_OWN), (main, MAIN_THREADS)):
            text = self._texts.get(numbers.get(name, 0))
            if text is not None:
                return Sampled(*text, owner, age_ns)
        return Sampled()

    def forget(self, before_ns: int) -> None:
        """Drop samples from before a time, but the last of them."""
        first = max(bisect_left(self._times, before_ns) - 1, 0)
        del self._times[:first], self._rounds[:first]


def _frame(function: str, file: str, line: int) -> PythonFrame:
    return PythonFrame(printable(function, MAX_NAME), printable(file, MAX_FILE, keep_end=True), int(line))


def is_sample(message: bytes) -> bool:
    """Return whether a message is for PythonSamples."""
    return message[:1] in (FRAMES, b"S")
