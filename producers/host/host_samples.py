"""Samples of all recorded processes of a host: rows of gpu.host.v1."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from drumline.producers.batching.sample_envelopes import UNKNOWN
from drumline.producers.host.cgroups import PRESSURES, Cgroup, CgroupPlace, Pressure, cgroup_place, increase
from drumline.producers.host.counters import ProcessCounters, ProcessEnded
from drumline.producers.host.targets import BOOT_TIMES, NotReadable, RecordedProcess, find_pid

log = structlog.get_logger()

#: Most processes of one user that are read: a user takes neither files nor CPU time of the agent from the others.
MOST_OF_USER = 64


class ProcessSample(NamedTuple):
    """One row: the process, its number on this host, and the columns."""

    process: RecordedProcess
    pid: int
    row: Mapping[str, int]


class _Sampled:
    """State of one process between two samples."""

    def __init__(
        self, process: RecordedProcess, pid: int, counters: ProcessCounters, cgroup: CgroupPlace, now: float
    ) -> None:
        self.process, self.pid, self.counters = process, pid, counters
        self.cgroup, self.at = cgroup, now
        self.before: dict[str, int] = {}


class HostSamples:
    """Reads the processes of this host. Used by one thread.

    `proc`, `cgroups`: where those file systems are mounted. `clock`: monotonic seconds.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._mounted, self._clock = proc, cgroups, clock
        self._has_delays = _enabled(proc / "sys/kernel/task_delayacct")
        self._host = Pressure(proc / "pressure", PRESSURES, "host_")
        self._sampled: dict[str, _Sampled] = {}
        self._cgroups: dict[CgroupPlace, Cgroup] = {}
        self._misses_quotas = False
        self._left_out: set[str] = set()
        self._many: set[int] = set()

    @property
    def processes(self) -> int:
        """Return the number of processes that are read."""
        return len(self._sampled)

    def follow(self, processes: Iterable[RecordedProcess]) -> None:
        """Read these processes from now on; what may not be read is logged once."""
        wanted: dict[str, RecordedProcess] = {}
        places, users = set(), Counter[int]()
        boot_times = BOOT_TIMES.observed()
        for process in processes:
            place = (process.record["job"], process.record["run"], process.record["rank"])
            if place not in places:  # a process with two sources is read once
                places.add(place)
                users[process.user] += 1
                if users[process.user] <= MOST_OF_USER:
                    wanted[str(process.record["process_id"])] = process
        if (many := {user for user, count in users.items() if count > MOST_OF_USER}) - self._many:
            log.warning("a user has too many processes: some are not sampled", users=sorted(many), most=MOST_OF_USER)
        self._many = many
        for name in self._sampled.keys() - wanted.keys():
            self._forget(name)
        for name, sampled in self._sampled.items():
            sampled.process = wanted[name]  # its rank and GPU may be known only later
        self._left_out &= wanted.keys()
        for name in wanted.keys() - self._sampled.keys() - self._left_out:
            try:
                pid = find_pid(wanted[name], self._proc, boot_times, os.geteuid())
                counters = ProcessCounters(self._proc / str(pid), self._has_delays)
            except (NotReadable, OSError, ValueError, IndexError, StopIteration) as error:
                self._left_out.add(name)
                log.warning("no samples of a process", process=name, rank=wanted[name].record["rank"], why=str(error))
                continue
            cgroup = cgroup_place(counters.cgroup(), self._mounted, self._proc / str(pid) / "root")
            self._report_unseen(cgroup, wanted[name])
            self._sampled[name] = sampled = _Sampled(wanted[name], pid, counters, cgroup, self._clock())
            if cgroup not in self._cgroups:
                self._cgroups[cgroup] = Cgroup(cgroup)
            try:
                sampled.before = self._totals(sampled, {})[0]
            except ProcessEnded:
                self._forget(name)

    def poll(self) -> None:
        """Look at the main threads; a share of these polls is the share of time that they spend in a state."""
        for sampled in self._sampled.values():
            sampled.counters.poll()

    def read(self, now_ns: int) -> Iterator[ProcessSample]:
        """Yield a row for each process, of the time since its last one."""
        shared: dict[Any, dict[str, int]] = {place: cgroup.read() for place, cgroup in self._cgroups.items()}
        shared["host"] = self._host.read()
        for name, sampled in list(self._sampled.items()):
            try:
                totals, since = self._totals(sampled, shared)
            except ProcessEnded:
                self._forget(name)
                continue
            now = self._clock()
            interval_ns, sampled.at = round((now - sampled.at) * 1e9), now
            counters = sampled.counters
            gil = counters.gil
            blocked = interval_ns * counters.blocked // counters.polls if counters.polls else UNKNOWN
            waiting = interval_ns * gil.waiting // gil.polls if gil.polls else UNKNOWN
            counters.blocked = counters.polls = gil.waiting = gil.polls = 0
            row = {**increase(sampled.before, totals), **since}
            sampled.before = totals
            row |= {"time_ns": now_ns, "interval_ns": interval_ns, "main_blocked_ns": blocked}
            row["main_gil_ns"] = waiting
            yield ProcessSample(sampled.process, sampled.pid, row)

    def close(self) -> None:
        """Close all files."""
        for name in list(self._sampled):
            self._forget(name)
        self._host.close()

    def _report_unseen(self, place: CgroupPlace, process: RecordedProcess) -> None:
        """Log, once, that the quota of a process's cgroup is not seen."""
        if not place.quotas and not self._misses_quotas:
            self._misses_quotas = True
            log.warning(
                "CPU throttling is not seen", job=process.record["job"], rank=process.record["rank"],
                why="its cgroup is neither mounted here nor readable where the process has it: the agent needs "
                "CAP_SYS_PTRACE for that",
            )  # fmt: skip

    def _totals(self, sampled: _Sampled, shared: Mapping[Any, Any]) -> tuple[dict[str, int], dict[str, int]]:
        totals, since = sampled.counters.read()
        of_cgroup = shared.get(sampled.cgroup) or self._cgroups[sampled.cgroup].read()
        return {**totals, **of_cgroup, **(shared.get("host") or self._host.read())}, since

    def _forget(self, name: str) -> None:
        sampled = self._sampled.pop(name)
        sampled.counters.close()
        if sampled.cgroup not in {other.cgroup for other in self._sampled.values()}:
            self._cgroups.pop(sampled.cgroup).close()


def _enabled(path: Path) -> bool:
    try:
        return path.read_text().strip() == "1"
    except OSError:
        return False
