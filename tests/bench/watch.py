"""Watches processes and lag while a pipeline runs: resident memory, CPU seconds, records behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import psutil


class Watch:
    """Samples every `every_s`. `memory`: name -> resident bytes over time; `lag`: (seconds, records behind)."""

    def __init__(self, pids: Mapping[str, int], lag: Callable[[], int | None], every_s: float = 0.5) -> None:
        self.memory: dict[str, list[int]] = {name: [] for name in pids}
        self.cpu_s: dict[str, float] = dict.fromkeys(pids, 0.0)
        self.lag: list[tuple[float, int]] = []
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._ask, self._every = lag, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Watch:
        self._began, self._before = time.monotonic(), self._cpu()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu_s = {name: used - self._before.get(name, 0.0) for name, used in self._cpu().items()}

    def _cpu(self) -> dict[str, float]:
        found = {}
        for name, process in self._processes.items():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            found[name] = times.user + times.system
        return found

    def _sample(self) -> None:
        while not self._stop.wait(self._every):
            for name, process in self._processes.items():
                try:
                    self.memory[name].append(process.memory_info().rss)
                except psutil.Error:
                    continue
            behind = self._ask()
            if behind is not None:
                self.lag.append((time.monotonic() - self._began, behind))


def quarters(values: Sequence[float]) -> tuple[float, float, float]:
    """(most, mean of the first quarter, mean of the last); zeros without values."""
    if not values:
        return 0.0, 0.0, 0.0
    size = max(1, len(values) // 4)
    return max(values), sum(values[:size]) / size, sum(values[-size:]) / size
