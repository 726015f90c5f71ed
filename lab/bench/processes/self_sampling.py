"""Measures a program from within, from its first record on: CPU, wall clock, memory, and records left over time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil

from drumline.lab.bench.processes.cpu_pinning import take_last_core

EVERY_S = 0.05
#: Samples from one reference workload to the next: other programs change what a CPU second is worth.
REFERENCE_EVERY = 5
_NUMBERS = np.arange(20_000, dtype=np.int64) * 7919 % 65_536


def reference_workload() -> float:
    """Return the CPU seconds of a fixed piece of Python and numpy work, about a millisecond."""
    began = time.thread_time()
    order = np.argsort(_NUMBERS, kind="stable")
    np.add.reduceat(_NUMBERS[order], np.arange(0, len(order), 64))
    sum({str(i): i for i in range(1000)}.values())
    return time.thread_time() - began


class SelfSampler:
    """Samples this process from a daemon thread.

    Make it before the work begins, and call `result` after it. The clock starts with the first record. `handled`
    returns the records handled so far.
    """

    def __init__(self, handled: Callable[[], int], wanted: int) -> None:
        self._handled, self._wanted, self._core = handled, wanted, take_last_core()
        self._memory: list[int] = []
        self._left: list[int] = []
        self._reference: list[float] = []
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
                if len(self._left) % REFERENCE_EVERY == 1:
                    self._reference.append(reference_workload())

    def result(self) -> dict[str, Any]:
        """Stop the sampling and return the measured values.

        `records` of the `handled` lie within `wall_s` and `cpu_s`, s. `memory`: resident bytes over time. `left`:
        records over time. `reference_s`: mean CPU seconds of the reference workload meanwhile.
        """
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
            "reference_s": float(np.mean(self._reference)) if self._reference else reference_workload(),
            "core": self._core,
        }
