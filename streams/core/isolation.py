"""Isolation of the units of a stage: an error in one puts its state in quarantine, and the others continue.

A unit is what state is kept of: a process, a communicator, or a run, each of one job. `IsolatedStage` is the only place
where stages iterate over units, and the only one that catches their errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Generic, TypeVar

from drumline.schemas.batch import Batch
from drumline.schemas.batch_table import BatchTable
from drumline.schemas.parts.merged import Ints
from drumline.schemas.parts.table import MergedParts
from drumline.streams.core.budget import ChargedStore, OverBudget, StateBudget, Store
from drumline.streams.core.records import UnreadableValue, split_run_key

Unit = TypeVar("Unit", bound=Hashable)
State = TypeVar("State")
Result = TypeVar("Result")
#: Why a unit is in quarantine, as metrics have it.
FAILED, BUDGET = "failed", "budget"


@dataclass(slots=True)
class Incident:
    """Describes a unit that went into quarantine, for the log, the metric and the result row.

    `unit`: its key. `reason`: FAILED or BUDGET. `at_ns`, `until_ns`: worker's clock at the error and at the release, 0
    while it is unknown, after a restart.
    """

    unit: Hashable
    job: str
    run: str
    reason: str
    error: Exception
    at_ns: int
    until_ns: int


class IsolatedStage(ABC, Generic[Unit, State]):
    """A `Stage` whose state is kept per unit.

    The state of a unit in quarantine is deleted at the next tick, so no restart restores what poison has made of it.
    Batches of the unit are counted and dropped until its release; it then begins without state. A new run is another
    unit. What a restart drops: the quarantine itself, so a unit that fails again goes back into it.

    Attributes:
        states: unit -> its state.
        quarantine: unit -> its incident.
        incidents: those not reported yet; the worker takes them.
        quarantined_rows, denied_rows: rows of units in quarantine, and rows that the budget did not take in.
    """

    def __init__(self, store: Store, budget: StateBudget | None = None) -> None:
        self.budget = budget or StateBudget()
        self.store = ChargedStore(store, self.budget)
        self.states: dict[Unit, State] = {}
        self.quarantine: dict[Unit, Incident] = {}
        self.incidents: list[Incident] = []
        self.quarantined_rows, self.denied_rows = 0, 0
        self._stored: set[Unit] = set()  # in quarantine, and not deleted yet
        self._now_ns = 0
        self._resume: Unit | None = None  # where the next tick begins, as the last one had too much to do

    @abstractmethod
    def _unit_of(self, batch: Batch) -> Unit:
        """Return the unit of an input batch or of a result."""

    @abstractmethod
    def _unit_of_key(self, name: str) -> Unit | None:
        """Return the unit that a key of the store belongs to; None = the stage's."""

    @abstractmethod
    def _apply(self, unit: Unit, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
        """Apply a batch to its unit (see `Stage.on_batch`)."""

    def _unit_of_merged(self, parts: MergedParts) -> Unit:
        """Return the unit of all parts, which have one Kafka key."""
        return self._unit_of(parts.batch(0))

    def _apply_merged(self, unit: Unit, parts: MergedParts, offsets: Ints, now_ns: int) -> list[Batch]:
        """Apply all parts to their unit (see `Stage.on_merged`)."""
        return [
            result
            for part, offset in enumerate(offsets.tolist())
            for result in self._apply(unit, parts.batch(part), offset, now_ns)
        ]

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

    def on_batch(self, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
        """Apply an input batch (see `Stage`). Raises what the unit's state raised; the unit is in quarantine then."""
        unit = self._unit_of(batch)
        return self._take(unit, batch.rows, partial(self._apply, unit, batch, offset, now_ns), now_ns)

    def on_merged(self, parts: MergedParts, offsets: Ints, now_ns: int) -> list[Batch]:
        """Apply all parts (see `Stage`). Raises what the unit's state raised, as `on_batch` does."""
        unit = self._unit_of_merged(parts)
        return self._take(unit, parts.rows, partial(self._apply_merged, unit, parts, offsets, now_ns), now_ns)

    def on_batches(self, table: BatchTable, offsets: Ints, now_ns: int) -> list[Batch]:
        """Apply many input batches (see `Stage`). Raises what a unit's state raised, as `on_batch` does."""
        return [
            result
            for number, offset in enumerate(offsets.tolist())
            for result in self.on_batch(table.batch(number), offset, now_ns)
        ]

    def _take(self, unit: Unit, rows: int, work: Callable[[], list[Batch]], now_ns: int) -> list[Batch]:
        """Return the results of rows of input, unless their unit takes none."""
        self._set_clock(now_ns)
        if unit in self.quarantine:
            self.quarantined_rows += rows
            return []
        if self.budget.denies(self._job_of(unit)) or (self.budget.full and self._is_new(unit)):
            self.denied_rows += rows
            return []
        out, error = self._attempt(unit, work)
        if error is not None:
            raise error
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
            results, _ = self._attempt(unit, partial(self._tick, unit, now_ns, caught_up))
            out += results or []
        self._purge(now_ns)
        return out

    def mark_sent(self, batch: Batch) -> None:
        """Record that the broker acknowledged a returned batch (see `Stage`)."""
        unit = self._unit_of(batch)
        if unit not in self.quarantine:
            self._attempt(unit, partial(self._mark_sent, unit, batch))

    def reject(self, batch: Batch, error: Exception) -> None:
        """Put the unit of a result that cannot be published in quarantine."""

        def fail() -> None:
            raise error

        unit = self._unit_of(batch)
        if unit not in self.quarantine:
            self._attempt(unit, fail)

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

    def _attempt(self, unit: Unit, work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
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
        self.states.pop(unit, None)
        reason = BUDGET if isinstance(error, OverBudget) else FAILED
        (job, run), at_ns = split_run_key(self._run_key_of(unit)), self._now_ns
        incident = Incident(unit, job, run, reason, error, at_ns, at_ns + limits.quarantine_ns)
        self.quarantine[unit] = incident
        self.incidents.append(incident)
        self._stored.add(unit)

    def _purge(self, now_ns: int) -> None:
        """Delete the stored values of units that went into quarantine since the last tick; release old ones."""
        if self._stored:
            for name in list(self.store):
                unit = self._unit_of_key(name)
                if unit in self._stored:
                    self.store.job = self._job_of(unit)
                    del self.store[name]
            self._stored.clear()
        surplus = len(self.quarantine) - self.budget.limits.quarantined
        released = [unit for unit, incident in self.quarantine.items() if incident.until_ns <= now_ns]
        for unit in {*released, *islice(self.quarantine, max(0, surplus))}:
            del self.quarantine[unit]
