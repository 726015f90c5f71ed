"""Isolation of the units of a stage: an error in one puts its state in quarantine, and the others continue.

A unit is what state is kept of: a process, a communicator, or a run, each of one job. `IsolatedStage` is the only place
where stages iterate over units, and the only one that catches their errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from drumline.infra.runtime.stage import BUDGET, FAILED, Incident
from drumline.schemas.batch import Batch
from drumline.schemas.record_table import Ints, RecordTable
from drumline.streams.core.records import UnreadableValue, split_run_key
from drumline.streams.core.state_budget import ChargedStore, OverBudget, StateBudget, Store

Unit = TypeVar("Unit", bound=Hashable)
State = TypeVar("State")
Result = TypeVar("Result")


def by_unit(
    table: RecordTable, offsets: Ints, units: Sequence[Unit]
) -> Iterator[tuple[Unit, RecordTable, Ints, Sequence[int]]]:
    """Yield each unit, its parts, their offsets, and the number of each one's record.

    `units`: of each part, or the one that all have.
    """
    distinct = dict.fromkeys(units)
    if len(distinct) == 1:
        yield units[0], table, offsets, table.record_of
        return
    for unit in distinct:
        parts = np.array([part for part, name in enumerate(units) if name == unit])
        yield unit, table.only(parts), offsets[parts], [table.record_of[part] for part in parts.tolist()]


class Work(NamedTuple, Generic[Unit]):
    """Holds what some parts mean for a unit. `rows`: of input. `records`: number of the record of each part."""

    unit: Unit
    rows: int
    run: Callable[[], list[Batch]]
    records: Sequence[int]


class IsolatedStage(ABC, Generic[Unit, State]):
    """A `Stage` whose state is kept per unit.

    The state of a unit in quarantine is deleted at the next tick, so no restart restores what poison has made of it.
    Batches of the unit are counted and dropped until its release; it then begins without state. A new run is another
    unit. What a restart drops: the quarantine itself, so a unit that fails again goes back into it.

    Attributes:
        states: unit -> its state.
        quarantine: unit -> its incident.
        incidents: those not reported yet; the worker takes them.
        failed: number of a record of the last table -> its error.
        quarantined_rows, denied_rows: rows of units in quarantine, and rows that the budget did not take in.
    """

    def __init__(self, store: Store, budget: StateBudget | None = None) -> None:
        self.budget = budget or StateBudget()
        self.store = ChargedStore(store, self.budget)
        self.states: dict[Unit, State] = {}
        self.quarantine: dict[Unit, Incident] = {}
        self.incidents: list[Incident] = []
        self.failed: dict[int, Exception] = {}
        self.quarantined_rows, self.denied_rows = 0, 0
        self._stored: set[Unit] = set()  # in quarantine, and not deleted yet
        self._now_ns = 0
        self._resume: Unit | None = None  # where the next tick begins, as the last one had too much to do

    @abstractmethod
    def _unit_of(self, batch: Batch) -> Unit:
        """Return the unit of a result."""

    @abstractmethod
    def _unit_of_key(self, name: str) -> Unit | None:
        """Return the unit that a key of the store belongs to; None = the stage's."""

    @abstractmethod
    def _work_of(self, table: RecordTable, offsets: Ints, now_ns: int) -> Iterator[Work[Unit]]:
        """Yield what the parts of a table mean for each unit."""

    @abstractmethod
    def _tick(self, unit: Unit, now_ns: int, caught_up: bool) -> list[Batch]:
        """Close what has timed out in a unit (see `Stage.on_tick`)."""

    @abstractmethod
    def _mark_sent(self, unit: Unit, batch: Batch) -> None:
        """Record that a result of a unit was acknowledged (see `Stage.mark_sent`)."""

    @abstractmethod
    def _restore_key(self, unit: Unit, name: str) -> None:
        """Index a stored value."""

    @abstractmethod
    def _memory_of(self, state: State) -> int:
        """Return about how many bytes of Python objects a state has beside its stored values; in constant time."""

    @abstractmethod
    def _run_key_of(self, unit: Unit) -> str:
        """Return the `run_key` of a unit's job and run."""

    def _job_of(self, unit: Unit) -> str:
        return split_run_key(self._run_key_of(unit))[0]

    def _is_new(self, unit: Unit) -> bool:
        """Return whether nothing is known of a unit."""
        return unit not in self.states

    def _resend(self, now_ns: int) -> list[Batch]:
        """Return the batches that were not acknowledged for too long."""
        return []

    def apply(self, table: RecordTable, offsets: Ints, now_ns: int) -> list[Batch]:
        """Apply the parts of input records (see `Stage`)."""
        self.failed = {}
        return [result for work in self._work_of(table, offsets, now_ns) for result in self._accept(work, now_ns)]

    def _accept(self, work: Work[Unit], now_ns: int) -> list[Batch]:
        """Return the results of work, unless its unit takes none, or fails: then `failed` has the records."""
        self._set_clock(now_ns)
        if work.unit in self.quarantine:
            self.quarantined_rows += work.rows
            return []
        if self.budget.denies(self._job_of(work.unit)) or (self.budget.full and self._is_new(work.unit)):
            self.denied_rows += work.rows
            return []
        out, error = self._charged(work.unit, work.run)
        if error is not None:
            self.failed |= dict.fromkeys(work.records, error)
        return out or []

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Close what has timed out in each unit, and delete what is in quarantine (see `Stage`)."""
        self._set_clock(now_ns)
        out = self._resend(now_ns)
        units = list(self.states)
        first = units.index(self._resume) if self._resume in self.states else 0
        self._resume = None
        for number, unit in enumerate(units[first:] + units[:first]):
            if number >= self.budget.limits.tick_units or len(out) >= self.budget.limits.tick_results:
                self._resume = unit
                break
            results, _ = self._charged(unit, partial(self._tick, unit, now_ns, caught_up))
            out += results or []
        self._purge(now_ns)
        return out

    def mark_sent(self, batch: Batch) -> None:
        """Record that the broker acknowledged a returned batch (see `Stage`)."""
        unit = self._unit_of(batch)
        if unit not in self.quarantine:
            self._charged(unit, partial(self._mark_sent, unit, batch))

    def reject(self, batch: Batch, error: Exception) -> None:
        """Put the unit of a result that cannot be published in quarantine."""

        def fail() -> None:
            raise error

        unit = self._unit_of(batch)
        if unit not in self.quarantine:
            self._charged(unit, fail)

    def forget_job(self, job: str) -> None:
        """Delete all state of a job at once, as `drumline forget` wants it. Records that follow begin without state."""
        stored = {unit for unit in map(self._unit_of_key, self.store) if unit is not None}
        for unit in [unit for unit in {*stored, *self.states} if self._job_of(unit) == job]:
            self._charged(unit, partial(self._drop, unit))
            self.quarantine.pop(unit, None)
            self._stored.add(unit)
        self._delete_stored()

    def forget_after(self, forget_ns: int) -> int:
        """Return the silence after which a unit is forgotten: `forget_ns`, or less while no new unit is taken in."""
        return min(forget_ns, self.budget.limits.forget_ns) if self.budget.full else forget_ns

    def release(self) -> None:
        """Give back the budget: this stage is replaced."""
        self.store.release()

    def _set_clock(self, now_ns: int) -> None:
        """Set the time of the next incidents, and of those met while restoring."""
        for incident in () if self._now_ns else self.quarantine.values():
            incident.at_ns, incident.until_ns = now_ns, now_ns + self.budget.limits.quarantine_ns
        self._now_ns = now_ns

    def _restore(self) -> None:
        """Index the stored values of every unit. Raises UnreadableValue."""
        for name in list(self.store):
            unit = self._unit_of_key(name)
            if unit is not None:
                self.store.job = self._job_of(unit)
                self.store.charge_stored(name)
                if unit not in self.quarantine:
                    self._guard(unit, partial(self._restore_key, unit, name))
        for unit in self.states:
            self.store.job = self._job_of(unit)
            self.store.charge(self._memory(unit))

    def _charged(self, unit: Unit, work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
        """Return (result, error) of work on a unit, charged to its job."""
        before, self.store.job = self._memory(unit), self._job_of(unit)
        outcome = self._guard(unit, work)
        if grown := self._memory(unit) - before:
            self.store.charge(grown)
        return outcome

    def _memory(self, unit: Unit) -> int:
        state = self.states.get(unit)
        return 0 if state is None else self.budget.limits.unit_bytes + self._memory_of(state)

    def _guard(self, unit: Unit, work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
        """Return (result, error) of work on a unit; after an error the unit is in quarantine."""
        try:
            return work(), None
        except UnreadableValue:
            raise
        except Exception as error:
            self._isolate(unit, error)
            return None, error

    def _isolate(self, unit: Unit, error: Exception) -> None:
        limits = self.budget.limits
        self._drop(unit)
        reason = BUDGET if isinstance(error, OverBudget) else FAILED
        (job, run), at_ns = split_run_key(self._run_key_of(unit)), self._now_ns
        incident = Incident(unit, job, run, reason, error, at_ns, at_ns + limits.quarantine_ns)
        self.quarantine[unit] = incident
        self.incidents.append(incident)
        self._stored.add(unit)

    def _drop(self, unit: Unit) -> None:
        """Drop the state of a unit from memory; its stored values stay until `_delete_stored`."""
        self.states.pop(unit, None)

    def _purge(self, now_ns: int) -> None:
        """Delete the stored values of units that went into quarantine since the last tick; release old ones."""
        self._delete_stored()
        surplus = len(self.quarantine) - self.budget.limits.quarantined
        released = [unit for unit, incident in self.quarantine.items() if incident.until_ns <= now_ns]
        for unit in {*released, *islice(self.quarantine, max(0, surplus))}:
            del self.quarantine[unit]

    def _delete_stored(self) -> None:
        if self._stored:
            for name in list(self.store):
                unit = self._unit_of_key(name)
                if unit in self._stored:
                    self.store.job = self._job_of(unit)
                    del self.store[name]
            self._stored.clear()
