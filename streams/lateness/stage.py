"""The lateness stage: joins each collective of a communicator over its ranks (gpu.lateness.v1).

The store is any mapping of bytes, in production a Faust table. After recovery or a rebalance a new stage reads its
index from the store and emits all steps again, which changes nothing downstream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.parts.joining import allowance_ns
from drumline.schemas.record_table import Ints, RecordTable
from drumline.streams.core.attempts import Attempts
from drumline.streams.core.in_flight import InFlight
from drumline.streams.core.input_counts import InputCounts
from drumline.streams.core.isolation import IsolatedStage, Work, by_unit
from drumline.streams.core.records import (
    NO_ROWS,
    key,
    pack_rows,
    run_key,
    run_keys,
    split_run_key,
    unit_parts,
    unpack_rows,
)
from drumline.streams.core.state_budget import StateBudget
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.emission import (
    Emission,
    Matches,
    completed_step,
    cut_steps,
    lateness_batches,
    matches_of,
    passes,
)
from drumline.streams.lateness.lateness_batch import MAX_ROWS
from drumline.streams.lateness.open_run import OpenRun
from drumline.streams.lateness.received import FromRanks, mixed_records, received_of
from drumline.streams.lateness.state import CommunicatorState, Store

Key = tuple[str, str]
#: Ranks whose steps are emitted in one call, some 0.1 s of work: the worker must answer Kafka in between.
EMITTED_RANKS = 4_096
#: A rank as Python objects: a `Member`, and the index of its chunks.
MEMBER_BYTES = 1_000
#: Kind of a key -> number of its parts before communicator and `run_key` (state.py).
_UNIT_AT = {"m": 3, "e": 1, "h": 1}


def _run_of(unit: Key) -> str:
    """Return the run of a communicator, of whatever attempt."""
    return run_key(*split_run_key(unit[0]))


class CommunicatorStage(IsolatedStage[Key, CommunicatorState]):
    """Emits the lateness of each rank from gpu.collective.v1, once all live ranks have completed a step. A `Stage`.

    Publish the batches that the methods return, keyed by job, then call `mark_sent` for each.
    """

    def __init__(self, store: Store, config: StragglerConfig, budget: StateBudget | None = None) -> None:
        super().__init__(store, budget)
        self.config, self.counts = config, InputCounts()
        self._in_flight: InFlight[Key, list[int]] = InFlight()  # steps of each batch
        self._runs: dict[str, OpenRun] = {}
        self._changed = 0  # communicators that became ready in this tick
        self.attempts = Attempts(self.store)
        self._restore()
        for state in self.states.values():
            state.dirty = {step for step in state.dirty if step >= state.horizon}

    @property
    def open_windows(self) -> int:
        """Return the number of steps with changes not emitted yet, and of batches not acknowledged."""
        return sum(len(state.dirty) for state in self.states.values()) + len(self._in_flight)

    @property
    def too_old(self) -> int:
        """Return the number of rows that came for steps already dropped."""
        return self.counts.too_old

    @property
    def duplicates(self) -> int:
        """Return the number of batches that were applied before."""
        return self.counts.duplicates

    def _unit_of(self, batch: Batch) -> Key:
        return self.attempts.unit_of_result(batch.envelope), batch.envelope["communicator"]

    def _unit_of_key(self, name: str) -> Key | None:
        parts = unit_parts(name, _UNIT_AT, 2)
        return None if parts is None else (parts[1], parts[0])

    def _memory_of(self, state: CommunicatorState) -> int:
        return MEMBER_BYTES * len(state.members)

    def _run_key_of(self, unit: Key) -> str:
        return unit[0]

    def _restore_key(self, unit: Key, name: str) -> None:
        state = self._state(unit)
        if name[0] == "m":
            _, chunk, number, _ = name.split("|", 3)
            state.restore_chunk(int(chunk), int(number))
        else:
            head = unpack_rows(self.store[name], NO_ROWS).head
            if name[0] == "e":
                state.emitted, state.sequence = head["emitted"], head["sequence"]
                state.attempt.published_ns = head["attempt"]
            else:
                state.horizon = int(head["horizon"])

    def apply(self, table: RecordTable, offsets: Ints, now_ns: int) -> list[Batch]:
        """Apply gpu.collective.v1 (see `Stage`), and return the lateness of steps that are completed.

        Communicators of a run complete a step at about one time, and are compared together: once the last of them
        completes one, since no window ends before, or at the next tick.
        """
        out = super().apply(table, offsets, now_ns)
        return out + [result for run in dict.fromkeys(run_keys(table)) for result in self._emit_completed(run, now_ns)]

    def _work_of(self, table: RecordTable, offsets: Ints, now_ns: int) -> Iterator[Work[Key]]:
        units = self.attempts.units_of_ranks(table)
        for run_name, parts, of_parts, records in by_unit(table, offsets, units):
            mixed = mixed_records(parts)
            error = ValueError("a record about several communicators")
            self.failed |= {records[part]: error for part in mixed}
            for name, received in received_of(parts, of_parts, self.config.max_steps, mixed):
                unit, came_in = (run_name, name), [records[part] for part in received.parts]
                yield Work(unit, received.rows_in, partial(self._apply_received, unit, received, now_ns), came_in)

    def _emit_completed(self, run_name: str, now_ns: int) -> list[Batch]:
        """Return the lateness of steps that the last communicator of a run has completed, of all its attempts."""
        run = self._runs.get(run_name)
        if run is not None and run.ready and run.advances():
            return self._emit_units(run.take_ready(EMITTED_RANKS)[0], now_ns)
        return []

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Mark silent ranks, and return the lateness of completed and of changed steps (see `Stage`)."""
        self._changed = 0
        out = super().on_tick(now_ns, caught_up)
        self.attempts.keep({unit for unit, _ in self.states}, {unit for unit, _ in self.quarantine})
        ready: list[Key] = []
        left = EMITTED_RANKS
        for run in self._runs.values():
            units, ranks = run.take_ready(left)
            ready, left = ready + units, left - ranks
        return out + self._emit_units(ready, now_ns)

    def _apply_received(self, unit: Key, received: FromRanks, now_ns: int) -> list[Batch]:
        """Apply what came of a communicator, and note whether it completes a step."""
        self._state(unit).apply(received, now_ns)
        if self._update(self.states[unit], now_ns) > self.states[unit].emitted:
            self._run(unit).ready[unit] = None
        return []

    def _resend(self, now_ns: int) -> list[Batch]:
        """Mark the steps of batches that were not acknowledged for too long; the tick returns them again."""
        for where, sequence, steps in self._in_flight.expired(now_ns - self.config.resend_ns):
            self._in_flight.settle(where, sequence)
            if where in self.states:
                self.states[where].dirty.update(steps)
        return []

    def _tick(self, unit: Key, now_ns: int, caught_up: bool) -> list[Batch]:
        """Mark silent ranks, and note whether there are completed or changed steps."""
        state = self.states[unit]
        state.mark_silent(now_ns, self.config.idle_ns + allowance_ns(state.world_size), caught_up)
        forget_ns = self.forget_after(self.config.forget_ns)
        if caught_up and all(now_ns - m.seen_ns > forget_ns for m in state.members.values()):
            self._forget(unit)
            return []
        frontier = self._update(state, now_ns)
        if frontier > state.emitted or any(step <= frontier for step in state.dirty):
            if self._changed < self.budget.limits.tick_results:
                self._changed += 1
                self._run(unit).ready[unit] = None
        elif self.budget.presses(state.job):  # what was acknowledged since
            self._drop_emitted(state, frontier)
        return []

    def _mark_sent(self, unit: Key, batch: Batch) -> None:
        """Store how far the communicator was emitted."""
        envelope = batch.envelope
        if self._in_flight.settle(unit, int(envelope["sequence"])) is None or unit not in self.states:
            return
        head = {
            "emitted": int(envelope["complete_step"]),
            "sequence": int(envelope["sequence"]) + 1,
            "attempt": int(envelope["attempt_start_ns"]),
        }
        self.store[key("e", unit[1], unit[0])] = pack_rows(-1, head, np.zeros(0, NO_ROWS))

    def _state(self, unit: Key) -> CommunicatorState:
        if unit not in self.states:
            attempt, most = self.attempts.of_unit(unit[0]), self.config.max_steps
            self.states[unit] = CommunicatorState(self.store, attempt, unit[1], most, self.counts)
            self._runs.setdefault(_run_of(unit), OpenRun()).add(unit, self.states[unit])
        return self.states[unit]

    def _run(self, unit: Key) -> OpenRun:
        return self._runs[_run_of(unit)]

    def _drop(self, unit: Key) -> None:
        super()._drop(unit)
        self._leave(unit)

    def _leave(self, unit: Key) -> None:
        """Forget that a communicator belongs to a run."""
        run = self._runs.get(_run_of(unit))
        if run is not None and not run.remove(unit):
            del self._runs[_run_of(unit)]

    def _update(self, state: CommunicatorState, now_ns: int) -> int:
        """Set and return the step that all live ranks of a communicator have completed."""
        frontier = completed_step(state, self.config, now_ns)
        silent = frontier < 0 or state.frontier.lowest() is None
        self._run((state.run_key, state.communicator)).update(state, frontier, silent)
        return frontier

    def _emit_units(self, units: Iterable[Key], now_ns: int) -> list[Batch]:
        """Return the completed steps of communicators."""
        cuts: list[Emission] = []
        for unit in units:
            if unit in self.states:
                of_unit, _ = self._charged(unit, partial(self._cuts, unit, now_ns))
                cuts += of_unit or []
        out: list[Batch] = []
        for together in passes(cuts):
            for cut, matches in zip(together, matches_of(together, self.config), strict=True):
                if cut.unit in self.states:
                    state = self.states[cut.unit]
                    batches, _ = self._charged(cut.unit, partial(self._emit, state, cut, matches, now_ns))
                    out += batches or []
        return out

    def _cuts(self, unit: Key, now_ns: int) -> list[Emission]:
        state = self.states[unit]
        return cut_steps(state, completed_step(state, self.config, now_ns), MAX_ROWS)

    def _emit(self, state: CommunicatorState, cut: Emission, matches: Matches | None, now_ns: int) -> list[Batch]:
        """Return the lateness of the steps of a cut, a batch for each slice of ranks."""
        out = lateness_batches(state, cut, matches, self.config, now_ns)
        for batch in out:
            self._in_flight.add(cut.unit, int(batch.envelope["sequence"]), cut.steps, now_ns)
        if cut.is_last:
            self._drop_emitted(state, cut.through)
        return out

    def _drop_emitted(self, state: CommunicatorState, frontier: int) -> None:
        """Delete the steps for which no late rows are awaited any more."""
        newest = max(member.complete for member in state.members.values())
        kept = 0 if self.budget.presses(state.job) else self.config.retention_steps
        horizon = max(frontier - kept, newest - self.config.max_steps)
        # Steps that are not acknowledged yet are emitted again after a crash.
        unacked = [step for emitted in self._in_flight.of((state.run_key, state.communicator)) for step in emitted]
        state.drop_before(min([horizon, *unacked]))

    def _forget(self, where: Key) -> None:
        state = self.states.pop(where)
        self._leave(where)
        state.drop_before(1 << 62)
        self.store.pop(key("e", where[1], where[0]), None)
        self.store.pop(state.horizon_key, None)
