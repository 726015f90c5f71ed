"""The numbers of a run's windows: how many steps each has, by how long the steps of the run take.

Rows are stored by blocks of `window_steps` steps, whatever their windows. A window never spans two blocks.

Key of the store: w|run_key, the spans of windows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, MutableMapping
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from drumline.streams.core.records import NO_ROWS, Rows, key, pack_rows, unpack_rows
from drumline.streams.core.thresholds import StragglerConfig

#: The shortest of so many steps shows how long they take: the first ones compile, and fill caches.
FIRST_STEPS = 3
#: A source is silent only after so many steps without a batch of it.
IDLE_STEPS = 2


class EqualWindows(NamedTuple):
    """Numbers windows of one length: from this step and this window on, `steps` each."""

    first_step: int
    first_window: int
    steps: int


class WindowLengths:
    """Keeps the length of a run's windows, in its store. Windows are numbered from 0, in the order of their steps.

    It is decided from the first steps, and holds for all of them. If steps turn out to be shorter later, windows from a
    later block on are longer; they are never shortened: their past would be of longer windows, which vary less.

    Attributes:
        step_ns: length of the steps that it was decided by; 0 = unknown.
    """

    __slots__ = ("_config", "_lengths", "_recent", "_run_key", "_spans", "_store", "step_ns")

    def __init__(self, store: MutableMapping[str, bytes], run_key: str, config: StragglerConfig) -> None:
        self._store, self._run_key, self._config = store, run_key, config
        self._spans: list[EqualWindows] = []
        self._lengths: dict[int, int] = {}  # first steps of the run -> shortest length of each, 0 = unknown
        self._recent: deque[tuple[int, int]] = deque()  # last windows, and their median steps
        self.step_ns = 0

    @property
    def is_decided(self) -> bool:
        """Return whether windows have a length yet; without one, none is evaluated."""
        return bool(self._spans)

    @property
    def _name(self) -> str:
        return key("w", self._run_key)

    def window_of(self, step: int) -> int:
        """Return the window of a step."""
        span = next((span for span in reversed(self._spans) if span.first_step <= step), self._spans[0])
        return span.first_window + (step - span.first_step) // span.steps

    def windows_of(self, steps: Iterable[int]) -> set[int]:
        """Return the windows of steps; none before their length is decided."""
        return {self.window_of(step) for step in steps} if self._spans else set()

    def first_step_of(self, window: int) -> int:
        """Return the first step of a window."""
        span = self._span_of(window)
        return span.first_step + (window - span.first_window) * span.steps

    def steps_of(self, window: int) -> tuple[int, int]:
        """Return the first and the last step of a window."""
        return self.first_step_of(window), self.last_step_of(window)

    def last_step_of(self, window: int) -> int:
        """Return the last step of a window."""
        return self.first_step_of(window) + self._span_of(window).steps - 1

    def block_of(self, window: int) -> int:
        """Return the block that the rows of a window are stored in."""
        return self._config.block_of(self.first_step_of(window))

    def through(self, step: int) -> int:
        """Return the last window whose steps all are at most this one."""
        return self.window_of(step + 1) - 1

    def before(self, window: int, steps: int) -> int:
        """Return the window that has the step so many steps before a window."""
        return self.window_of(self.first_step_of(window) - steps)

    def config_of(self, window: int) -> StragglerConfig:
        """Return the thresholds for a window of its length; what is kept of it falls as over as many steps."""
        steps, full = self._span_of(window).steps, self._config
        if steps == full.window_steps:
            return full
        keep = full.hidden_keep ** (steps / full.window_steps)
        return replace(full, window_steps=steps, hidden_keep=keep)

    def _span_of(self, window: int) -> EqualWindows:
        return next((span for span in reversed(self._spans) if span.first_window <= window), self._spans[0])

    def note_steps(self, rows: Rows) -> None:
        """Note how long steps take, until the length of windows is decided."""
        if self._spans:
            return
        for step, length in zip(rows["step"].tolist(), rows["duration_ns"].tolist(), strict=True):
            known = self._lengths.get(step, 0)
            self._lengths[step] = min(known or length, length) if length > 0 else known

    def decide(self, is_over: bool) -> bool:
        """Decide the length of windows if enough is known, and return whether that was now.

        `is_over`: no more steps come for now, so what is known is enough.
        """
        if self._spans:
            return False
        shortest = min((length for length in self._lengths.values() if length), default=0)
        is_full = shortest > 0 and self._length_for(shortest) == self._config.window_steps
        if not (is_full or is_over or len(self._lengths) >= FIRST_STEPS):
            return False
        self._add(EqualWindows(0, 0, self._length_for(shortest)), shortest)
        self._lengths = {}
        return True

    def note_window(self, window: int, step_ns: int, newest_block: int) -> None:
        """Note the median step of an evaluated window: if a block of them shows shorter steps, windows become longer.

        `newest_block`: the last block of which there are rows. Longer windows begin behind it, where none has begun.
        """
        last, full = self._spans[-1], self._config.window_steps
        if last.steps == full or window < last.first_window or (self._recent and window <= self._recent[-1][0]):
            return
        self._recent.append((window, step_ns))
        if len(self._recent) < full // last.steps:
            return
        length = round(median(of for _, of in self._recent))
        self._recent.popleft()
        if self._length_for(length) > last.steps:
            first = (newest_block + 1) * full
            self._add(EqualWindows(first, self.window_of(first), self._length_for(length)), length)
            self._recent.clear()

    def _length_for(self, step_ns: int) -> int:
        """Return the largest part of a block that lasts no longer than `window_ns`, in steps; 1 at least."""
        full = self._config.window_steps
        return next((n for n in range(full, 1, -1) if full % n == 0 and n * step_ns <= self._config.window_ns), 1)

    def _add(self, span: EqualWindows, step_ns: int) -> None:
        self._spans.append(span)
        self.step_ns = step_ns
        head = {"spans": self._spans, "step_ns": step_ns}
        self._store[self._name] = pack_rows(-1, head, np.zeros(0, NO_ROWS))

    def restore(self) -> None:
        """Read what is stored."""
        head = unpack_rows(self._store[self._name], NO_ROWS).head
        self._spans = [EqualWindows(*span) for span in head["spans"]]
        self.step_ns, self._lengths = int(head["step_ns"]), {}

    def forget(self) -> None:
        """Delete what is stored."""
        self._store.pop(self._name, None)
