"""Bounds on the state of one worker, and the account of what each job keeps of it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

Store = MutableMapping[str, bytes]
NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StateLimits:
    """Bounds the state of one worker, over all its stages and partitions. Costs are bytes of memory."""

    #: State above which no new unit is taken in. With the program itself and records in flight (about 250 MB) a worker
    #: stays below 600 MB; a setting, since large jobs need more.
    worker_bytes: int = 320_000_000
    #: Part of it that one job may keep: half is left to its neighbours.
    job_share: float = 0.5
    #: One value. Changelogs take 8 MiB after compression, and a rejected write would end the worker for all jobs.
    value_bytes: int = 4 << 20
    #: A key beside its value: two copies of it, and an entry in the stage's and in Faust's dictionary. Measured.
    key_bytes: int = 500
    #: Python objects of a unit beside its stored values. Measured (tests/streams/worker/test_state_memory.py).
    unit_bytes: int = 2_000
    #: Time for which a unit stays in quarantine: long enough for a person to see it, short beside a training job; ns.
    quarantine_ns: int = 600 * NANOSECONDS
    #: Units in quarantine at a time: the oldest are released beyond it.
    quarantined: int = 10_000
    #: Results of a tick after which it leaves the other units to the next: 2.4 ms each in the straggler stage, and the
    #: worker must answer Kafka in between.
    tick_results: int = 500
    #: While no new unit is taken in, units silent for this long are forgotten, not only after hours; ns.
    forget_ns: int = 60 * NANOSECONDS


class OverBudget(Exception):
    """The unit's job keeps more state than it may, or a value is too large. Fatal for the unit."""


class StateBudget:
    """Counts the state of each job, over all stages of one worker.

    Shared by the stages; used in the worker's event loop. `jobs`: job -> cost, `total`: their sum.
    """

    def __init__(self, limits: StateLimits | None = None) -> None:
        self.limits = limits or StateLimits()
        self.jobs: dict[str, int] = {}
        self.total = 0

    @property
    def full(self) -> bool:
        """Return whether no new unit may be taken in."""
        return self.total >= self.limits.worker_bytes

    def charge(self, job: str, cost: int) -> None:
        """Add a cost to a job; negative = give it back."""
        self.total += cost
        kept = self.jobs.get(job, 0) + cost
        if kept > 0:
            self.jobs[job] = kept
        else:
            self.jobs.pop(job, None)

    def check(self, job: str, cost: int) -> None:
        """Raise OverBudget if a job may not grow by this cost.

        While the worker is full, jobs with less than an equal share of its state may still grow.
        """
        limits, kept = self.limits, self.jobs.get(job, 0) + cost
        share = limits.worker_bytes / max(1, len(self.jobs)) if self.full else limits.worker_bytes * limits.job_share
        if kept > share:
            raise OverBudget(
                f"the state of the job takes {kept} bytes, {share:.0f} are its share of DRUMLINE_STREAM__STATE_MB"
            )


class ChargedStore(MutableMapping[str, bytes]):
    """Maps keys to bytes and charges every change to `job`, which its stage sets before the change.

    `charged`: job -> cost of the values of this store, and of the stage's units.
    """

    def __init__(self, data: Store, budget: StateBudget) -> None:
        self._data, self._budget, self._limits = data, budget, budget.limits
        self.job = ""
        self.charged: dict[str, int] = {}

    def charge(self, cost: int) -> None:
        """Add a cost to the job."""
        self._budget.charge(self.job, cost)
        kept = self.charged.get(self.job, 0) + cost
        if kept > 0:
            self.charged[self.job] = kept
        else:
            self.charged.pop(self.job, None)

    def charge_stored(self, name: str) -> None:
        """Charge a value that was stored before this worker started."""
        self.charge(self._cost(name, self._data[name]))

    def release(self) -> None:
        """Give everything back: the partition went to another worker, or is restored again."""
        for job, cost in self.charged.items():
            self._budget.charge(job, -cost)
        self.charged = {}

    def _cost(self, name: str, value: bytes) -> int:
        return self._limits.key_bytes + 2 * len(name) + len(value)

    def __getitem__(self, name: str) -> bytes:
        return self._data[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value without the exception of Mapping.get, which costs more than the rest."""
        return self._data.get(name, default)

    def __setitem__(self, name: str, value: bytes) -> None:
        if len(value) > self._limits.value_bytes:
            raise OverBudget(f"a value of {len(value)} bytes, {self._limits.value_bytes} are the most")
        old = self._data.get(name)
        cost = self._cost(name, value) if old is None else len(value) - len(old)
        if cost > 0:
            self._budget.check(self.job, cost)
        self._data[name] = value
        self.charge(cost)

    def __delitem__(self, name: str) -> None:
        cost = self._cost(name, self._data[name])
        del self._data[name]
        self.charge(-cost)

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)
