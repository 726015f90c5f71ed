"""What a program measures of itself from its first record on: CPU, wall clock; memory and records left over time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from drumline.bench.pin import own_core

EVERY_S = 0.05


class Sampled:
    """Start it before the work, `result` after it. `handled`: records so far; the clock starts with the first."""

    def __init__(self, handled: Callable[[], int], wanted: int) -> None:
        self._handled, self._wanted, self._core = handled, wanted, own_core()
        self._memory: list[int] = []
        self._left: list[int] = []
        self._began: tuple[int, float, float] | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        me = psutil.Process()
        while not self._done.wait(EVERY_S if self._began else 0.002):
            handled = self._handled()
            if self._began is None and handled:
                self._began = handled, time.perf_counter(), time.process_time()
            if self._began:
                self._memory.append(me.memory_info().rss)
                self._left.append(self._wanted - handled)

    def result(self) -> dict[str, Any]:
        """`records` of `handled` lie within `wall_s` and `cpu_s`, s. `memory`: resident bytes; `left`: records."""
        self._done.set()
        self._thread.join()
        before, began, cpu = self._began or (0, time.perf_counter(), time.process_time())
        return {
            "records": self._handled() - before,
            "handled": self._handled(),
            "wall_s": time.perf_counter() - began,
            "cpu_s": time.process_time() - cpu,
            "memory": self._memory,
            "left": self._left,
            "core": self._core,
        }
