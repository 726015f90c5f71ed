"""Watches processes and lags while a pipeline runs: resident memory, CPU seconds, records behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import psutil


class ProcessWatch:
    """Samples memory and lag from a daemon thread for as long as its block runs.

    An error of a lag source ends the sampling; `check` and the end of the block raise it.

    memory: name -> resident bytes over time.
    lag: name -> records behind over time; a source that returns None adds nothing.
    cpu_s: name -> CPU seconds within the block, set at its end.
    """

    def __init__(
        self, pids: Mapping[str, int], lag: Mapping[str, Callable[[], int | None]], every_s: float = 0.5
    ) -> None:
        self.memory: dict[str, list[int]] = {name: [] for name in pids}
        self.cpu_s: dict[str, float] = dict.fromkeys(pids, 0.0)
        self.lag: dict[str, list[int]] = {name: [] for name in lag}
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._lag_sources, self._every_s = lag, every_s
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> ProcessWatch:
        self._before = self._cpu()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu_s = {name: used - self._before.get(name, 0.0) for name, used in self._cpu().items()}
        if kind is None:
            self.check()

    def check(self) -> None:
        """Raise the error that ended the sampling, if there was one."""
        if self._error is not None:
            raise self._error

    def _cpu(self) -> dict[str, float]:
        used = {}
        for name, process in self._processes.items():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            used[name] = times.user + times.system
        return used

    def _sample(self) -> None:
        try:
            self._sample_until_stopped()
        except BaseException as error:
            self._error = error

    def _sample_until_stopped(self) -> None:
        while not self._stop.wait(self._every_s):
            for name, process in self._processes.items():
                try:
                    self.memory[name].append(process.memory_info().rss)
                except psutil.Error:
                    continue
            for name, source in self._lag_sources.items():
                behind = source()
                if behind is not None:
                    self.lag[name].append(behind)


def over_time(values: Sequence[float], unit: float = 1.0, slices: int = 10) -> str:
    """Return the means of equal parts of the time, oldest first, in `unit`s: "12, 13, 13"."""
    parts = np.array_split(np.asarray(values, dtype=float) / unit, slices)
    return ", ".join(f"{part.mean():,.0f}" for part in parts if len(part))
