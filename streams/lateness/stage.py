"""The lateness stage: joins each collective of a communicator over its ranks (gpu.lateness.v1).

The store is any mapping of bytes, in production a Faust table. After recovery or a rebalance a new stage reads its
index from the store and emits all steps again, which changes nothing downstream.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.budget import StateBudget
from drumline.streams.core.in_flight import InFlight
from drumline.streams.core.input_counts import InputCounts
from drumline.streams.core.isolation import IsolatedStage
from drumline.streams.core.records import Rows, key, pack_rows, run_key, stacked, unit_parts, unpack_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_join import KIND_ROW, LATENESS_ROW, StepMatch, match_step, point_to_point
from drumline.streams.lateness.gap_changes import HiddenPart, beyond_longest, hidden_part
from drumline.streams.lateness.lateness_batch import MAX_ROWS, lateness_batch, slices, step_lists
from drumline.streams.lateness.state import NO_ROWS, CommunicatorState, Store

Key = tuple[str, str]
#: A rank as Python objects: a `Member`, and its newest chunks unpacked.
MEMBER_BYTES = 1_000
#: Kind of a key -> number of its parts before communicator and `run_key` (state.py).
_UNIT_AT = {"m": 3, "e": 1, "h": 1}


class CommunicatorStage(IsolatedStage[Key, CommunicatorState]):
    """Emits the lateness of each rank from gpu.collective.v1, once all live ranks have completed a step. A `Stage`.

    Publish the batches that the methods return, keyed by job, then call `mark_sent` for each.
    """

    def __init__(self, store: Store, config: StragglerConfig, budget: StateBudget | None = None) -> None:
        super().__init__(store, budget)
        self.config, self.counts = config, InputCounts()
        self._in_flight: InFlight[Key, list[int]] = InFlight()  # steps of each batch
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
        return run_key(batch.envelope["job"], batch.envelope["run"]), batch.envelope["communicator"]

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
            _, chunk, rank, _ = name.split("|", 3)
            state.restore_chunk(int(chunk), int(rank))
        else:
            head = unpack_rows(self.store[name], NO_ROWS).head
            if name[0] == "e":
                state.emitted, state.sequence = head["emitted"], head["sequence"]
            else:
                state.horizon = int(head["horizon"])

    def _apply(self, unit: Key, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
        """Apply a gpu.collective.v1 batch and return the lateness of steps that it completes."""
        state = self._state(unit)
        state.apply(batch, offset, now_ns)
        if self._frontier(state, now_ns) <= state.emitted:
            return []
        return self._emit(state, now_ns)

    def _resend(self, now_ns: int) -> list[Batch]:
        """Mark the steps of batches that were not acknowledged for too long; the tick returns them again."""
        for where, sequence, steps in self._in_flight.expired(now_ns - self.config.resend_ns):
            self._in_flight.settle(where, sequence)
            if where in self.states:
                self.states[where].dirty.update(steps)
        return []

    def _tick(self, unit: Key, now_ns: int, caught_up: bool) -> list[Batch]:
        """Mark silent ranks, then return the lateness of completed and of changed steps."""
        state = self.states[unit]
        for member in state.members.values():
            member.seen_ns = member.seen_ns or now_ns  # restored: silent from now on
            member.silent = member.silent or (caught_up and now_ns - member.seen_ns > self.config.idle_ns)
        state.frontier.invalidate()
        forget_ns = self.forget_after(self.config.forget_ns)
        if caught_up and all(now_ns - m.seen_ns > forget_ns for m in state.members.values()):
            self._forget(unit)
            return []
        frontier = self._frontier(state, now_ns)
        if frontier > state.emitted or any(step <= frontier for step in state.dirty):
            return self._emit(state, now_ns)
        if self.budget.presses(state.job):  # what was acknowledged since
            self._drop_emitted(state, frontier)
        return []

    def _mark_sent(self, unit: Key, batch: Batch) -> None:
        """Store how far the communicator was emitted."""
        envelope = batch.envelope
        if self._in_flight.settle(unit, int(envelope["sequence"])) is None:
            return
        head = {"emitted": int(envelope["complete_step"]), "sequence": int(envelope["sequence"]) + 1}
        self.store[key("e", unit[1], unit[0])] = pack_rows(-1, head, np.zeros(0, NO_ROWS))

    def _state(self, unit: Key) -> CommunicatorState:
        if unit not in self.states:
            self.states[unit] = CommunicatorState(self.store, *unit, self.config.max_steps, self.counts)
        return self.states[unit]

    def _frontier(self, state: CommunicatorState, now_ns: int) -> int:
        """Return the last step that all live ranks have completed; with no live rank, the last step of any."""
        is_whole = 0 < state.world_size <= len(state.members)
        settled = is_whole or now_ns - state.first_seen_ns > self.config.settle_ns
        if len(state.members) < 2 or not settled:
            return -1
        lowest = state.frontier.lowest()
        return max(state.dirty | {m.complete for m in state.members.values()}) if lowest is None else lowest

    def _emit(self, state: CommunicatorState, now_ns: int) -> list[Batch]:
        """Return the completed steps, in records that Kafka takes."""
        frontier = self._frontier(state, now_ns)
        steps = sorted(step for step in state.dirty if step <= frontier)
        if state.light:  # a step is compared with the step before
            steps = sorted({*steps, *(step + 1 for step in steps if step < state.emitted)})
        most = max(1, MAX_ROWS // len(state.members))
        cuts = [steps[at : at + most] for at in range(0, len(steps), most)] or [[]]
        ends = [*(cut[-1] for cut in cuts[:-1]), frontier]
        emitted = (self._emit_steps(state, cut, end, now_ns) for cut, end in zip(cuts, ends, strict=True))
        out = list(chain.from_iterable(emitted))
        self._drop_emitted(state, frontier)
        return out

    def _drop_emitted(self, state: CommunicatorState, frontier: int) -> None:
        """Delete the steps for which no late rows are awaited any more."""
        newest = max(member.complete for member in state.members.values())
        kept = 0 if self.budget.presses(state.job) else self.config.retention_steps
        horizon = max(frontier - kept, newest - self.config.max_steps)
        # Steps that are not acknowledged yet are emitted again after a crash.
        unacked = [step for emitted in self._in_flight.of((state.run_key, state.communicator)) for step in emitted]
        state.drop_before(min([horizon, *unacked]))

    def _emit_steps(self, state: CommunicatorState, steps: list[int], through: int, now_ns: int) -> list[Batch]:
        """Return the lateness of steps, a batch for each slice of ranks. `through`: the last step that is complete with
        them.
        """
        rows_of = state.rows_of_steps(steps)
        matches = self._matched(state, rows_of)
        hidden = self._hidden(state, matches) if state.light else {}
        state.patterns.update(pattern for s in steps if (pattern := point_to_point(rows_of[s])))
        state.dirty.difference_update(steps)
        rows = stacked([np.zeros(0, LATENESS_ROW), *(match.rows for match in matches.values())])
        kinds = stacked([np.zeros(0, KIND_ROW), *(match.kinds for match in matches.values())])
        lists, out = step_lists(kinds, hidden), []
        cuts = slices(sorted(state.members))
        for ranks in cuts:
            if ranks is cuts[-1]:  # complete with the last slice only
                state.emitted = max(state.emitted, through)
            inside = rows[np.isin(rows["rank"], ranks)] if len(cuts) > 1 else rows
            out.append(lateness_batch(state, ranks, inside, lists, now_ns))
            self._in_flight.add((state.run_key, state.communicator), state.sequence, steps, now_ns)
            state.sequence += 1
        return out

    def _matched(self, state: CommunicatorState, rows_of: dict[int, dict[int, Rows]]) -> dict[int, StepMatch]:
        """Return step -> its comparison, for steps that have rows."""
        ranks, needed, whole = len(state.members), self.config.quorum, self.config.whole_share
        return {step: match_step(step, rows, ranks, needed, whole) for step, rows in rows_of.items() if rows}

    def _hidden(self, state: CommunicatorState, matches: dict[int, StepMatch]) -> dict[int, HiddenPart]:
        """Set `hidden_wait_ns` of light steps and return how much of their waits was hidden, compared with the steps
        before.
        """
        before = [step - 1 for step in matches if step - 1 not in matches]
        known = matches | self._matched(state, state.rows_of_steps(before))
        light = {s: m for s, m in known.items() if m.table.shape[1] and m.table["light"].all()}
        out = {}
        for step in (step for step in matches if step in light):
            now, earlier = light[step], light.get(step - 1)
            now.rows["hidden_wait_ns"] = beyond_longest(now.table)
            if earlier is not None:
                ranks = earlier.rows["rank"], now.rows["rank"]
                out[step] = hidden_part(earlier.table, now.table, *ranks, self.config)
        return out

    def _forget(self, where: Key) -> None:
        state = self.states.pop(where)
        state.drop_before(1 << 62)
        self.store.pop(key("e", where[1], where[0]), None)
        self.store.pop(state.horizon_key, None)
