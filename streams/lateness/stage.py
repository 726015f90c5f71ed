"""The lateness stage: joins each collective of a communicator over its ranks (gpu.lateness.v1).

The store is any mapping of bytes, in production a Faust table. After recovery or a rebalance a new stage reads its
index from the store and emits all steps again, which changes nothing downstream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drumline.schemas.batch import Batch, dictionary
from drumline.schemas.keys import derived_process_id
from drumline.streams.core.records import Rows, key, pack_rows, stacked, unpack_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_join import KIND_ROW, LATENESS_ROW, OPERATIONS, match_step, point_to_point
from drumline.streams.lateness.state import NO_ROWS, CommunicatorState, Store

TOPIC = "gpu.lateness.v1"
#: Most rows of a record (92 bytes a row, Kafka takes 1 MB); all ranks of a step are in one record.
MAX_ROWS = 8192
Key = tuple[str, str]


class CommunicatorStage:
    """Emits the lateness of each rank from gpu.collective.v1, once all live ranks have completed a step. A `Stage`.

    Publish the batches that the methods return, keyed by job, then call `mark_sent` for each.
    """

    def __init__(self, store: Store, config: StragglerConfig) -> None:
        self.store, self.config = store, config
        self.states: dict[Key, CommunicatorState] = {}
        #: (process id, sequence) -> (communicator, steps, time of emission), not acknowledged yet.
        self._in_flight: dict[tuple[str, int], tuple[Key, list[int], int]] = {}
        self._restore()

    @property
    def open_windows(self) -> int:
        """Return the number of steps with changes not emitted yet, and of batches not acknowledged."""
        return sum(len(state.dirty) for state in self.states.values()) + len(self._in_flight)

    @property
    def too_old(self) -> int:
        """Return the number of rows that came for steps already dropped."""
        return sum(state.too_old for state in self.states.values())

    @property
    def duplicates(self) -> int:
        """Return the number of batches that were applied before."""
        return sum(state.duplicates for state in self.states.values())

    def on_batch(self, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
        """Apply a gpu.collective.v1 batch and return the lateness of steps that it completes (see `Stage`)."""
        state = self._state(batch.envelope["run"], batch.envelope["communicator"])
        state.apply(batch, offset, now_ns)
        if self._frontier(state, now_ns) <= state.emitted:
            return []
        return self._emit(state, now_ns)

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Mark silent ranks, then return the lateness of completed and of changed steps (see `Stage`)."""
        out: list[Batch] = []
        for process_sequence, (where, steps, emitted_ns) in list(self._in_flight.items()):
            if now_ns - emitted_ns > self.config.resend_ns:
                del self._in_flight[process_sequence]
                if where in self.states:
                    self.states[where].dirty.update(steps)
        for where, state in list(self.states.items()):
            for member in state.members.values():
                member.seen_ns = member.seen_ns or now_ns  # restored: silent from now on
                member.silent = member.silent or (caught_up and now_ns - member.seen_ns > self.config.idle_ns)
            state.frontier.invalidate()
            if caught_up and all(now_ns - m.seen_ns > self.config.forget_ns for m in state.members.values()):
                self._forget(where)
                continue
            frontier = self._frontier(state, now_ns)
            if frontier > state.emitted or any(step <= frontier for step in state.dirty):
                out += self._emit(state, now_ns)
        return out

    def mark_sent(self, batch: Batch) -> None:
        """Store how far the communicator was emitted (see `Stage`)."""
        envelope = batch.envelope
        where = (envelope["run"], envelope["communicator"])
        if self._in_flight.pop((envelope["process_id"], int(envelope["sequence"])), None) is None:
            return
        head = {"emitted": int(envelope["complete_step"]), "sequence": int(envelope["sequence"]) + 1}
        self.store[key("e", where[1], where[0])] = pack_rows(-1, head, np.zeros(0, NO_ROWS))

    def _state(self, run: str, communicator: str) -> CommunicatorState:
        where = (run, communicator)
        if where not in self.states:
            self.states[where] = CommunicatorState(self.store, run, communicator)
        return self.states[where]

    def _restore(self) -> None:
        for name in list(self.store):
            kind, rest = name.split("|", 1)
            if kind == "m":
                chunk, rank, communicator, run = rest.split("|", 3)
                self._state(run, communicator).restore_chunk(int(chunk), int(rank))
            elif kind == "e":
                communicator, run = rest.split("|", 1)
                state, head = self._state(run, communicator), unpack_rows(self.store[name], NO_ROWS).head
                state.emitted, state.sequence = head["emitted"], head["sequence"]
            elif kind == "h":
                communicator, run = rest.split("|", 1)
                state = self._state(run, communicator)
                state.horizon = int(unpack_rows(self.store[name], NO_ROWS).head["horizon"])
        for state in self.states.values():
            state.dirty = {step for step in state.dirty if step >= state.horizon}

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
        most = max(1, MAX_ROWS // len(state.members))
        cuts = [steps[at : at + most] for at in range(0, len(steps), most)] or [[]]
        out = [self._emit_steps(state, cut, cut[-1], now_ns) for cut in cuts[:-1]]
        out.append(self._emit_steps(state, cuts[-1], frontier, now_ns))
        newest = max(member.complete for member in state.members.values())
        horizon = max(frontier - self.config.retention_steps, newest - self.config.max_steps)
        # Steps that are not acknowledged yet are emitted again after a crash.
        this = (state.run, state.communicator)
        unacked = [step for where, emitted, _ in self._in_flight.values() if where == this for step in emitted]
        state.drop_before(min([horizon, *unacked]))
        return out

    def _emit_steps(self, state: CommunicatorState, steps: list[int], through: int, now_ns: int) -> Batch:
        """Return the lateness of steps as one batch. `through`: the last step that is complete with it."""
        rows_of = state.rows_of_steps(steps)
        ranks, needed, whole = len(state.members), self.config.quorum, self.config.whole_share
        parts = [match_step(s, rows_of[s], ranks, needed, whole) for s in steps if rows_of[s]]
        state.patterns.update(pattern for s in steps if (pattern := point_to_point(rows_of[s])))
        state.dirty.difference_update(steps)
        state.emitted = max(state.emitted, through)
        rows = stacked([np.zeros(0, LATENESS_ROW), *(part for part, _ in parts)])
        kinds = stacked([np.zeros(0, KIND_ROW), *(part for _, part in parts)])
        batch = self._batch(state, rows, kinds, now_ns)
        where = (state.run, state.communicator)
        self._in_flight[(batch.envelope["process_id"], state.sequence)] = (where, steps, now_ns)
        state.sequence += 1
        return batch

    def _batch(self, state: CommunicatorState, rows: Rows, kinds: Rows, now_ns: int) -> Batch:
        ranks = sorted(state.members)
        hosts, host_of = dictionary(state.members[rank].host for rank in ranks)
        gpus, gpu_of = dictionary(state.members[rank].gpu_uuid for rank in ranks)
        envelope: dict[str, Any] = {
            "job": state.job,
            "run": state.run,
            "world_size": state.world_size,
            "process_id": derived_process_id(TOPIC, state.communicator, state.run),
            "sequence": state.sequence,
            "rows": len(rows),
            "sent_ns": now_ns,
            "communicator": state.communicator,
            "complete_step": state.emitted,
            "ranks": len(ranks),
            "rank_list": ranks,
            "hosts": hosts,
            "gpu_uuids": gpus,
            "operations": list(OPERATIONS),
            "kind_steps": kinds["step"].tolist(),
            "kind_operations": kinds["operation"].tolist(),
            "kind_bytes": kinds["bytes"].tolist(),
            "kind_counts": kinds["collectives"].tolist(),
            "kind_floors_ns": kinds["floor_ns"].tolist(),
            "point_to_point": max(state.patterns, key=lambda name: state.patterns[name], default=""),
        }
        columns = {name: np.ascontiguousarray(rows[name]) for name in LATENESS_ROW.names or ()}
        member = np.searchsorted(ranks, rows["rank"])
        columns["host"] = np.array(host_of, "<u4")[member]
        columns["gpu_uuid"] = np.array(gpu_of, "<u4")[member]
        return Batch(TOPIC, envelope, columns)

    def _forget(self, where: Key) -> None:
        state = self.states.pop(where)
        state.drop_before(1 << 62)
        self.store.pop(key("e", where[1], where[0]), None)
        self.store.pop(state.horizon_key, None)
