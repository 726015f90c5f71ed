"""Counters of one process and its threads, from /proc. Its files stay open, so another process with its number is not
mistaken for it."""

from __future__ import annotations

import os
from pathlib import Path

from drumline.producers.batching.sample_envelopes import UNKNOWN
from drumline.producers.host.cgroups import CounterFile, number_after
from drumline.producers.host.gil import GilPoll
from drumline.producers.host.targets import BLOCK_IO_TICKS, MAJOR_FAULTS, RSS_PAGES, STATE, THREADS, stat_fields

#: Most threads of a process that are read. Files of more than KEPT_FILES are opened for each reading.
MOST_THREADS, KEPT_FILES = 512, 256
_TICK_NS, _PAGE = 1_000_000_000 // os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


class ProcessEnded(Exception):
    """The process is gone."""


class ProcessCounters:
    """Reads one process. Used by one thread; every method reads small files of the kernel.

    `blocked`, `polls`: how often the main thread was in uninterruptible sleep, and was polled. `gil`: the same for its
    waiting for the GIL.
    """

    def __init__(self, folder: Path, has_delays: bool) -> None:
        self._folder, self._has_delays = folder, has_delays
        main = folder / "task" / folder.name
        self._state, self._status = CounterFile(main / "stat"), CounterFile(main / "status")
        self._stat = CounterFile(folder / "stat")
        self._threads: dict[str, CounterFile] = {}
        self._totals: dict[str, tuple[int, int]] = {}
        self.blocked = self.polls = 0
        self.gil = GilPoll(int(folder.name), folder.parent)

    def poll(self) -> None:
        """Note whether the main thread is in uninterruptible sleep now, or waits for the GIL."""
        self.gil.poll()
        fields = stat_fields(self._state.text())
        self.polls += bool(fields)
        self.blocked += bool(fields) and fields[STATE] == b"D"

    def read(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return totals by column, and what has a value now or was counted since the last call.

        Raises ProcessEnded.
        """
        fields = stat_fields(self._stat.text())
        if len(fields) <= BLOCK_IO_TICKS or fields[STATE] in (b"Z", b"X"):
            raise ProcessEnded
        status = self._status.text()
        totals = {
            "major_faults": int(fields[MAJOR_FAULTS]),
            "block_io_ns": int(fields[BLOCK_IO_TICKS]) * _TICK_NS if self._has_delays else UNKNOWN,
            "main_switches": number_after(status, b"\nvoluntary_ctxt_switches:"),
            "main_preempted": number_after(status, b"nonvoluntary_ctxt_switches:"),
        }
        now = {"threads": int(fields[THREADS]), "rss_bytes": int(fields[RSS_PAGES]) * _PAGE}
        return totals, {**now, **self._scheduled()}

    def _scheduled(self) -> dict[str, int]:
        """Return CPU time and waiting for a CPU since the last call."""
        try:
            names = os.listdir(self._folder / "task")[:MOST_THREADS]
        except OSError:
            raise ProcessEnded from None
        for name in self._totals.keys() - set(names):
            del self._totals[name]
            if name in self._threads:
                self._threads.pop(name).close()
        main, rest = (UNKNOWN, UNKNOWN), []
        for name in names:
            numbers = self._thread(name).split()
            if len(numbers) < 2:
                continue
            total = int(numbers[0]), int(numbers[1])
            before = self._totals.get(name)
            self._totals[name] = total
            spent = (total[0] - before[0], total[1] - before[1]) if before else total
            if name == self._folder.name:
                main = spent
            else:
                rest.append(spent)
        waited = [wait for _, wait in rest]
        return {
            "main_cpu_ns": main[0],
            "main_wait_ns": main[1],
            "other_cpu_ns": sum(cpu for cpu, _ in rest) if main[0] >= 0 else UNKNOWN,
            "other_wait_ns": sum(waited) if main[0] >= 0 else UNKNOWN,
            "most_wait_ns": max(waited, default=0) if main[0] >= 0 else UNKNOWN,
        }

    def _thread(self, name: str) -> bytes:
        file = self._threads.get(name) or CounterFile(self._folder / "task" / name / "schedstat")
        text = file.text()
        if len(self._threads) < KEPT_FILES or name in self._threads:
            self._threads[name] = file
        else:
            file.close()
        return text

    def cgroup(self) -> str:
        """Return the content of its file of cgroups; "" where it cannot be read."""
        try:
            return (self._folder / "cgroup").read_text()
        except OSError:
            return ""

    def close(self) -> None:
        """Close all files."""
        self.gil.close()
        for file in (self._state, self._status, self._stat, *self._threads.values()):
            file.close()
