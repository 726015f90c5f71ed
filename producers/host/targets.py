"""Finds the process of this host that a record is about, as far as the agent may read it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from drumline.schemas.bounds.limits import bounds
from drumline.schemas.topics import Topic

#: Largest difference between the start of a process and what its record states: ticks, and clocks that were set; ns.
SAME_START_NS = 2_000_000_000
#: From when on a clock has stepped; it is slewed by less in the time between two looks; ns. The most steps to know.
STEP_NS, MOST_STEPS = 500_000_000, 16
#: Fields of /proc/PID/stat behind the name of the program, from 0 (proc_pid_stat(5) counts them from 3).
STATE, MAJOR_FAULTS, THREADS, START_TICKS, RSS_PAGES, BLOCK_IO_TICKS = 0, 9, 17, 19, 21, 39


#: What samples take over from a record; numbers besides the start.
_TEXTS = ("job", "run", "host", "gpu_uuid", "process_id")
_NUMBERS = ("rank", "local_rank", "world_size", "pid")


class NotReadable(Exception):
    """The process of a record is not there, or belongs to somebody else."""


@dataclass(frozen=True)
class RecordedProcess:
    """A process of this host that records.

    Attributes:
        record: fields of its gpu.process.v1 record.
        pid: of this pid namespace where `is_certain`, else as the process sees itself.
        user: who wrote the record; no process of another user is read for it.
        start_ticks: start of the process by the kernel, which gave the pid (lock of a ring); 0 = the process stated it.
    """

    record: Mapping[str, Any]
    pid: int
    user: int
    start_ticks: int = 0

    @property
    def is_certain(self) -> bool:
        """Return whether the pid is the kernel's."""
        return self.start_ticks > 0


class RingWriter(NamedTuple):
    """Names a process that writes a ring: its number here, its user, and its start by the kernel in ticks."""

    pid: int
    user: int
    start_ticks: int


def recorded_process(record: Mapping[str, Any], user: int, ring: RingWriter | None = None) -> RecordedProcess | None:
    """Return the process of a record that `user` wrote; None for one of no job, or that no producer writes.

    `ring`: who writes the ring that the agent wrote the record from.
    """
    limits, texts = bounds(Topic.HOST), {name: record.get(name, "") for name in _TEXTS}
    numbers = {name: record.get(name, 0) for name in (*_NUMBERS, "start_ns")}
    if not all(_is_text(text, limits["job"].length) for text in texts.values()):
        return None
    if not all(type(number) is int for number in numbers.values()) or not texts["job"]:
        return None
    if not all(limits[name].low <= numbers[name] <= limits[name].high for name in _NUMBERS):
        return None
    process = {**texts, **numbers}
    if ring is not None:
        return RecordedProcess(process, *ring)
    return RecordedProcess(process, numbers["pid"], user)


def _is_text(value: object, most: int) -> bool:
    """Return whether a value of JSON is a text that a record can hold: half of a surrogate pair is none."""
    return isinstance(value, str) and len(value) <= most and value.encode(errors="ignore").decode() == value


def stat_fields(text: bytes) -> list[bytes]:
    """Return the fields of /proc/PID/stat behind the name of the program, which may hold spaces and brackets."""
    return text.rpartition(b")")[2].split()


def start_ticks(folder: Path) -> int:
    """Return the start of the process of a folder of /proc, by which its number is not another's. Raises OSError."""
    return int(stat_fields((folder / "stat").read_bytes())[START_TICKS])


def boot_ns() -> int:
    """Return the time at which this host was started, by its clock of now; ns since the epoch."""
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class BootTimes:
    """Knows when this host was started, by all that its clock has stated since the agent's start.

    The kernel has a process's start since that time, and a record has it by the clock of then: once that has stepped,
    it fits the earlier time only. Any thread may call it.
    """

    def __init__(self, clock: Callable[[], int] = boot_ns) -> None:
        self._clock, self._seen = clock, deque[int](maxlen=MOST_STEPS)

    def observed(self) -> tuple[int, ...]:
        """Return the times, the newest first; ns since the epoch."""
        now_ns = self._clock()
        if not self._seen or abs(now_ns - self._seen[0]) > STEP_NS:
            self._seen.appendleft(now_ns)
        return tuple(self._seen)


def find_pid(process: RecordedProcess, proc: Path, started_ns: Collection[int], user: int) -> int:
    """Return the number of a recorded process below `proc`. Raises NotReadable, OSError.

    `started_ns`: when this host was started (BootTimes). `user`: of the agent, who reads its own processes, root all. A
    process in a container has another number here: it is found by start and the number that it sees itself.
    """
    if user not in (0, process.user):
        raise NotReadable(f"it belongs to user {process.user}, the agent runs as user {user}")
    if process.is_certain:
        candidates: Iterable[int] = (process.pid,)
    else:
        candidates = (process.pid, *(int(name) for name in os.listdir(proc) if name.isdigit()))
    for pid in candidates:
        with suppress(FileNotFoundError, ProcessLookupError):
            folder = proc / str(pid)
            if folder.stat().st_uid == process.user and _is_same(folder, process, started_ns):
                return pid
    raise NotReadable(f"no process {process.pid} of user {process.user} is to be seen from here")


def _is_same(folder: Path, process: RecordedProcess, started_ns: Collection[int]) -> bool:
    ticks = start_ticks(folder)
    if process.is_certain:
        return ticks == process.start_ticks
    booted_ns = int(process.record.get("start_ns", 0)) - ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    if all(abs(booted_ns - known_ns) > SAME_START_NS for known_ns in started_ns):
        return False
    numbers = next(line for line in (folder / "status").read_text().splitlines() if line.startswith("NSpid:"))
    return int(numbers.split()[-1]) == process.pid


#: Of this process, which looks for its recorded processes in several threads.
BOOT_TIMES = BootTimes()
