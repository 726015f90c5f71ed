"""Bounds on the state of one worker, and the account of what each job keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

Store = MutableMapping[str, bytes]
NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class StateLimits:
    """Bounds the state of one worker, over all its stages and partitions. Costs are bytes of memory."""

    #: State above which the worker is full: no new unit is taken in, and the largest jobs keep less. The default does
    #: not bind: whoever evaluates a recording waits for all of it.
    worker_bytes: int = 1 << 62
    #: Part of it that a job always has, however many others there are: their number is up to whoever names them.
    floor_share: float = 1 / 32
    #: State, as a multiple of it, above which the largest jobs do not grow, and above which none does.
    largest_stop: float = 1.25
    all_stop: float = 1.5
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
    #: Units that it visits at most; the next tick visits the others. 60,000 took 0.3 s of each second.
    tick_units: int = 5_000
    #: While no new unit is taken in, units silent for this long are forgotten, not only after hours. A job that writes
    #: a checkpoint is silent for minutes; ns.
    forget_ns: int = 600 * NANOSECONDS


class OverBudget(Exception):
    """A value is too large for the changelog. Fatal for the unit."""


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

    def presses(self, job: str) -> bool:
        """Return whether a job keeps only what it still needs: the worker is full, and the job is above its share.

        Its share is an equal one, or the floor; a job alone has everything.
        """
        limits = self.limits
        share = limits.worker_bytes * max(limits.floor_share, 1 / max(1, len(self.jobs)))
        return self.full and self.jobs.get(job, 0) >= share

    def denies(self, job: str) -> bool:
        """Return whether a job may not grow: the largest cannot keep less, or all others together are too much."""
        limits = self.limits
        stop = limits.largest_stop if self.presses(job) else limits.all_stop
        return self.total >= limits.worker_bytes * stop


class ChargedStore(MutableMapping[str, bytes]):
    """Maps keys to bytes and charges every change to `job`, which its stage sets before the change.

    `charged`: job -> cost of the values of this store, and of the stage's units.
    """

    def __init__(self, data: Store, budget: StateBudget) -> None:
        self._data, self._budget, self._limits = data, budget, budget.limits
        self._size_of: Callable[[str], int] = getattr(data, "size_of", lambda name: len(data[name]))
        self.job = ""
        self.charged: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        """Return whether no new unit may be taken in."""
        return self._budget.full

    @property
    def is_denied(self) -> bool:
        """Return whether the job may not grow."""
        return self._budget.denies(self.job)

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
        self.charge(self._cost(name, self._size_of(name)))

    def release(self) -> None:
        """Give everything back: the partition went to another worker, or is restored again."""
        for job, cost in self.charged.items():
            self._budget.charge(job, -cost)
        self.charged = {}

    def _cost(self, name: str, size: int) -> int:
        return self._limits.key_bytes + 2 * len(name) + size

    def __getitem__(self, name: str) -> bytes:
        return self._data[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value without the exception of Mapping.get, which costs more than the rest."""
        return self._data.get(name, default)

    def pop(self, name: str, default: Any = None) -> Any:
        """Delete a value, if there is one; return `default`: nobody reads what is deleted."""
        if name in self._data:
            del self[name]
        return default

    def __setitem__(self, name: str, value: bytes) -> None:
        if len(value) > self._limits.value_bytes:
            raise OverBudget(f"a value of {len(value)} bytes, {self._limits.value_bytes} are the most")
        is_new = name not in self._data
        cost = self._cost(name, len(value)) if is_new else len(value) - self._size_of(name)
        self._data[name] = value
        self.charge(cost)

    def __delitem__(self, name: str) -> None:
        cost = self._cost(name, self._size_of(name))
        del self._data[name]
        self.charge(-cost)

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)
