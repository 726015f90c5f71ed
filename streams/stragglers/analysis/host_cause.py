"""Causes on a late rank's host: samples of its process against those of its peers (gpu.host.v1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median  # of some samples: 10 times as fast as NumPy's

import numpy as np

from drumline.schemas.record_table import RecordTable
from drumline.streams.core.records import Rows
from drumline.streams.core.thresholds import StragglerConfig

#: Columns that verdicts use; -1 = unknown.
SAMPLED = (
    "main_wait_ns",
    "most_wait_ns",
    "throttled_ns",
    "main_blocked_ns",
    "block_io_ns",
    "major_faults",
    "main_gil_ns",
)
HOST_ROW = np.dtype([("time_ns", "<i8"), ("interval_ns", "<i8"), *((name, "<i8") for name in SAMPLED)])
#: Details that are named whatever the job did in that time: it wanted to run and had no CPU.
NO_CPU = frozenset({"cpu_throttled", "cpu_contention"})
#: Time between two polls (producers/host), the share of polls that meet a healthy process waiting, and how rarely so
#: many of them do by chance.
POLL_NS, BY_CHANCE, RARE = 50_000_000, 0.005, 1 / 80_000
#: Standard errors by which a share of polls may lie below the truth, and the part of it that must be seen anyway.
POLL_ERRORS, SEEN = 2.0, 0.5
#: Longest time of one page fault: disks and network file systems answer sooner.
LONGEST_FAULT_NS = 100_000_000
#: What a fault costs beside its wait, at least: the kernel's work for the read. Of fast disks that is as long as the
#: wait (36 to 41 us of 80 to 110, measured in a virtual machine), and no poll sees it.
FAULT_CPU_NS = 5_000


def host_rows(table: RecordTable) -> Rows:
    """Return the HOST_ROW rows of gpu.host.v1."""
    rows = np.zeros(table.rows, HOST_ROW)
    for name in HOST_ROW.names or ():
        rows[name] = table.columns[name]
    return rows


class ProcessSamples:
    """Holds the samples of one process (HOST_ROW). Each rate is computed once: a rank is the peer of many late ones."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._rates: dict[tuple[tuple[str, ...], float], float] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def rate(self, names: tuple[str, ...], most: float) -> float:
        """Return the sum of columns per ns, at most `most`; -1 = unknown."""
        if (names, most) not in self._rates:
            self._rates[names, most] = _rate(self.rows, names, most)
        return self._rates[names, most]


def host_detail(
    samples: ProcessSamples, peers: Sequence[ProcessSamples], time_ns: float, excess_ns: float, config: StragglerConfig
) -> tuple[str, dict[str, int]]:
    """Return (detail, evidence) of a rank whose GPU was idle for `excess_ns` more than its peers', of `time_ns`.

    A part of the host's time explains it where the process had more of it than its median peer, by `cause_share` of
    the excess. The details; of the last four the one that explains most:

    - cpu_throttled: the process's cgroup had used up its CPU quota.
    - cpu_contention: main thread, or the thread that waited longest, could run and had no CPU.
    - python_lock: the main thread waited for Python's GIL.
    - page_faults: the main thread waited for the disk, and memory was read from there; what that takes of a CPU counts.
    - disk: it waited for the disk, without page faults.
    - "": the samples do not decide.

    Times that were polled may be too small by POLL_ERRORS.

    Evidence: what the rank had more of than its peers, over `time_ns`.
    """
    if not len(samples) or not any(map(len, peers)) or excess_ns <= 0:
        return "", {}

    def more(*names: str, most: float = 1.0) -> float:
        rate = samples.rate(names, most)
        known = [value for peer in peers if (value := peer.rate(names, most)) >= 0]
        return (rate - float(median(known))) * time_ns if rate >= 0 and known else 0.0

    throttled = more("throttled_ns")
    waited = more("main_wait_ns", "most_wait_ns")
    measured = bool((samples.rows["block_io_ns"] > 0).any())  # some kernels say that they measure it, and do not
    blocked, gil = more("block_io_ns" if measured else "main_blocked_ns"), more("main_gil_ns")
    faults = more("major_faults", most=np.inf)
    evidence = {
        "throttled_ns": throttled,
        "run_queue_ns": waited,
        "gil_ns": gil,
        "disk_ns": blocked,
        "major_faults": faults,
    }
    numbers = {name: round(value) for name, value in evidence.items() if round(value) > 0}
    enough = config.cause_share * excess_ns
    if throttled >= enough:
        return "cpu_throttled", numbers
    waited -= max(throttled, 0.0)  # a throttled thread waits too
    parts = {"cpu_contention": (waited, 0.0)}
    parts["python_lock"] = gil, _error(samples.rows, "main_gil_ns") * time_ns
    disk = "page_faults" if faults * LONGEST_FAULT_NS >= blocked else "disk"
    handled = min(blocked, faults * FAULT_CPU_NS) if disk == "page_faults" else 0.0
    parts[disk] = blocked + handled, 0.0 if measured else _error(samples.rows, "main_blocked_ns") * time_ns
    detail = max(parts, key=lambda name: parts[name])
    part, error = parts[detail]
    return (detail if part >= SEEN * enough and part + error >= enough else ""), numbers


def _error(rows: Rows, name: str) -> float:
    """Return by how much a share of time that was polled may be too small; -infinity where it may be chance."""
    known = rows[(rows[name] >= 0) & (rows["interval_ns"] > 0)]
    polls, met = (float(known[column].sum()) / POLL_NS for column in ("interval_ns", name))
    if polls <= 0 or _chance(round(met), BY_CHANCE * polls) > RARE:
        return -np.inf
    share = min(met / polls, 1.0)
    return POLL_ERRORS * math.sqrt(share * (1 - share) / polls)


def _chance(count: int, mean: float) -> float:
    """Return the probability of `count` or more events where `mean` are expected (Poisson)."""
    return 1.0 - math.exp(-mean) * sum(mean**k / math.factorial(k) for k in range(count)) if count < 100 else 0.0


def _rate(rows: Rows, names: Sequence[str], most: float) -> float:
    """Return the sum of columns per ns, at most `most`; -1 = unknown."""
    known = rows[np.all([rows[name] >= 0 for name in names], axis=0) & (rows["interval_ns"] > 0)]
    if not len(known):
        return -1.0
    return min(most, sum(float(known[name].sum()) for name in names) / float(known["interval_ns"].sum()))
