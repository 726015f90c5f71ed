"""Measures the CPU of each part of a run, and of everything else on the machine, which disturbs delays."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping, Sequence

import psutil

#: The process that generates hostile records and polls the verdicts; and those that it started and that have ended.
SENDER, ENDED, REST = "hostile records", "replay", "rest of the machine"


class CpuUse:
    """Measures from its creation on; `parts`: name -> running processes."""

    def __init__(self, parts: Mapping[str, Sequence[psutil.Process]]) -> None:
        self._parts, self._began, self._before = parts, time.monotonic(), self._read(parts)

    def cores(self) -> dict[str, float]:
        """Return the mean number of cores that each part has used, and those of REST."""
        now, seconds = self._read(self._parts), time.monotonic() - self._began
        cores = {name: (used - self._before[name]) / seconds for name, used in now.items()}
        cores[REST] -= sum(used for name, used in cores.items() if name != REST)
        return {name: round(max(0.0, used), 2) for name, used in cores.items()}

    @staticmethod
    def _read(parts: Mapping[str, Sequence[psutil.Process]]) -> dict[str, float]:
        """Return CPU seconds by part; those of REST are the whole machine's."""
        machine = psutil.cpu_times()
        sender, ended = (resource.getrusage(kind) for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        read = {name: sum(map(_seconds, processes)) for name, processes in parts.items()}
        read |= {SENDER: sender.ru_utime + sender.ru_stime, ENDED: ended.ru_utime + ended.ru_stime}
        return read | {REST: sum(machine) - machine.idle - getattr(machine, "iowait", 0.0)}


def _seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # restarted; the report counts that
        return 0.0
    return float(times.user + times.system)
