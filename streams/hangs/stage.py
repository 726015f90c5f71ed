"""The hang stage: says when a job stands still, for which ranks it waits, and why (gpu.hang.v1).

A job stands still when none of its processes moves. How long that is, each agent measures by its own clock, so clocks
are never compared, and a delayed record is no standstill.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.parts.joining import allowance_ns
from drumline.schemas.record_table import Ints, RecordTable
from drumline.schemas.topics import Topic
from drumline.streams.core.attempts import Attempts
from drumline.streams.core.in_flight import InFlight
from drumline.streams.core.isolation import IsolatedStage, Work, by_unit
from drumline.streams.core.records import (
    NO_ROWS,
    key,
    key_parts,
    pack_rows,
    split_run_key,
    unit_parts,
    unpack_rows,
)
from drumline.streams.core.state_budget import StateBudget, Store
from drumline.streams.hangs.config import HangConfig
from drumline.streams.hangs.hang_batch import WHOLE_JOB, HangRow, digest, hang_batch, standing_rows
from drumline.streams.hangs.named_ranks import Reason, Standstill, explain, with_stalled_links
from drumline.streams.hangs.ras_statements import informed
from drumline.streams.hangs.snapshot import ProcessProgress, Report, processes_of
from drumline.streams.hangs.stalled_connections import StalledConnections, StalledPair

#: Kind of a key -> number of its parts before the `run_key`: h|run_key, what is published; e|process|run_key, a process
#: that ended.
_RUN_AT = {"h": 1, "e": 2}
#: A process and a row of its record, as Python objects. Estimated.
PROCESS_BYTES, ROW_BYTES = 1_500, 120
MOVING, STANDING, HUNG, OVER = "moving", "standing", "hung", "over"
_STATED = (STANDING, HUNG)


@dataclass(slots=True)
class JobProgress:
    """Keeps the state of one run.

    Attributes:
        processes: process id -> its newest progress.
        busy: processes that moved a short time ago.
        silent: processes whose agent has sent nothing for some time, although the worker had no lag.
        head: what was published last: episode, revision, state, start_ns, named ranks, digest, sequence.
        first_seen_ns: worker's clock at the first record or tick since the restart.
        changed: the explanation may be another one.
        explained: the last explanation, the number of processes that were known then, and what was stalled.
        connections: of its ranks over TCP; those that are stalled show a link that delivers nothing.
        ended_ns: worker's clock when a process was last found to have ended; 0 = none since the restart.
        rows: of all processes.
    """

    world_size: int = 0
    processes: dict[str, ProcessProgress] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    head: dict[str, Any] = field(default_factory=lambda: {"episode": 0, "revision": 0, "state": MOVING, "sequence": 0})
    first_seen_ns: int = 0
    changed: bool = True
    explained: tuple[Standstill, int, tuple[StalledPair, ...]] | None = None
    connections: StalledConnections = field(default_factory=StalledConnections)
    ended_ns: int = 0
    rows: int = 0

    @property
    def stands(self) -> bool:
        """Return whether it stands still, as published."""
        return self.head["state"] in _STATED


class HangStage(IsolatedStage[str, JobProgress]):
    """Evaluates the progress of each run (gpu.progress.v1). A `Stage`."""

    def __init__(self, store: Store, config: HangConfig, budget: StateBudget | None = None) -> None:
        super().__init__(store, budget)
        self.config = config
        self.duplicates = 0
        self._in_flight: InFlight[str, tuple[Batch, dict[str, Any]]] = InFlight()  # with the head to store
        self.attempts = Attempts(self.store)
        self._restore()

    @property
    def open_windows(self) -> int:
        """Return the number of results that are not acknowledged."""
        return len(self._in_flight)

    def _unit_of(self, batch: Batch) -> str:
        return self.attempts.unit_of_result(batch.envelope)

    def _unit_of_key(self, name: str) -> str | None:
        parts = unit_parts(name, _RUN_AT)
        return None if parts is None else parts[0]

    def _memory_of(self, state: JobProgress) -> int:
        return PROCESS_BYTES * len(state.processes) + ROW_BYTES * state.rows + state.connections.memory

    def _run_key_of(self, unit: str) -> str:
        return unit

    def _restore_key(self, unit: str, name: str) -> None:
        state, head = self.states.setdefault(unit, JobProgress()), unpack_rows(self.store[name], NO_ROWS).head
        if name[0] == "h":
            state.head, state.world_size = head["published"], head["world_size"]
            state.connections.ends = {(local, remote): rank for local, remote, rank in state.head.get("ends", ())}
            self.attempts.of_unit(unit).published_ns = head["published"]["attempt"]
        else:
            process = ProcessProgress.from_json(head["process"])
            state.processes[key_parts(name, 3)[1]], state.rows = process, state.rows + process.size

    def _work_of(self, table: RecordTable, offsets: Ints, now_ns: int) -> Iterator[Work[str]]:
        if table.topic == Topic.TRANSFER:
            for unit, parts, _, records in by_unit(table, offsets, self.attempts.units_at(table)):
                if (state := self.states.get(unit)) is not None:  # connections begin no run
                    yield Work(unit, parts.rows, partial(self._note_connections, state, parts), records)
            return
        for unit, parts, of_parts, records in by_unit(table, offsets, self.attempts.units_of_ranks(table)):
            yield Work(unit, parts.rows, partial(self._apply, unit, parts, of_parts, now_ns), records)

    def _note_connections(self, state: JobProgress, table: RecordTable) -> list[Batch]:
        """Take in what the kernels count; the next tick evaluates it."""
        state.connections.apply(table)
        return []

    def _apply(self, unit: str, table: RecordTable, offsets: Ints, now_ns: int) -> list[Batch]:
        """Take in the newest progress of all parts."""
        processes = processes_of(table, now_ns, self.config.standing_ns)
        state = self.states.setdefault(unit, JobProgress())
        state.connections.advance(table.number("rank"), table.number("sent_ns"))
        return self._take_in(unit, processes, int(table.number("world_size").max()), now_ns)

    def on_tick(self, now_ns: int, caught_up: bool) -> list[Batch]:
        """Evaluate all runs (see `Stage`)."""
        out = super().on_tick(now_ns, caught_up)
        self.attempts.keep(self.states, self.quarantine)
        return out

    def _take_in(self, unit: str, processes: Iterable[Report], world_size: int, now_ns: int) -> list[Batch]:
        """Take in what is told of processes, and return the results that change."""
        state = self.states.setdefault(unit, JobProgress())
        state.first_seen_ns = state.first_seen_ns or now_ns
        out: list[Batch] = []
        for process_id, process, parts in processes:
            before = state.processes.get(process_id)
            if process is None:
                continue
            if before is not None and process.sequence <= before.sequence:
                self.duplicates += parts
                continue
            state.processes[process_id] = process
            state.rows += process.size - (0 if before is None else before.size)
            state.changed |= before is None or not process.mark or before.mark != process.mark
            state.world_size = max(state.world_size, int(world_size))
            is_busy = not process.has_ended and process.quiet_ns < self.config.standing_ns
            (state.busy.add if is_busy else state.busy.discard)(process_id)
            state.silent.discard(process_id)
            if process.has_ended:  # it sends no more
                state.ended_ns = now_ns
                value = {"process": process.to_json()}
                self.store[key("e", process_id, unit)] = pack_rows(-1, value, np.zeros(0, NO_ROWS))
            if bool(state.busy) == state.stands:
                out += self._evaluate(unit, state, now_ns)
        return out

    def _tick(self, unit: str, now_ns: int, caught_up: bool) -> list[Batch]:
        """Leave silent processes out, and evaluate the run.

        Lag makes a process silent, but no job stand still: all records of a job lie in one partition, in their order.
        """
        state, config = self.states[unit], self.config
        state.first_seen_ns = state.first_seen_ns or now_ns
        for name, process in state.processes.items() if caught_up else ():
            process.seen_ns = process.seen_ns or now_ns
            if not process.has_ended and now_ns - process.seen_ns > config.silent_ns:
                state.silent.add(name)
                state.busy.discard(name)
        last_ns = max((process.seen_ns for process in state.processes.values()), default=state.first_seen_ns)
        last_ns = last_ns or state.first_seen_ns
        if caught_up and now_ns - last_ns > self.forget_after(config.forget_ns) and not state.stands:
            self._forget(unit)
            return []
        return self._evaluate(unit, state, now_ns, now_ns - last_ns if caught_up else 0)

    def _evaluate(self, unit: str, state: JobProgress, now_ns: int, silent_ns: int = 0) -> list[Batch]:
        """Return what changed. `silent_ns`: time without any record of the run."""
        config = self.config
        if self.attempts.is_over(unit):  # the job has restarted
            return self._publish_end(unit, state, OVER, "", now_ns)
        if state.busy:
            return self._publish_end(unit, state, MOVING, "", now_ns)
        if now_ns - state.first_seen_ns < config.join_ns + allowance_ns(state.world_size):
            return []
        known = [process for name, process in state.processes.items() if name not in state.silent]
        quiet_ns = min((process.quiet_ns for process in known if not process.has_ended), default=0)
        if not quiet_ns:
            is_complete = len(known) >= state.world_size or silent_ns > config.silent_ns
            if known and len(known) == len(state.processes) and is_complete:
                return self._publish_end(unit, state, OVER, "", now_ns)
            is_over = silent_ns > config.over_ns
            return self._publish_end(unit, state, OVER, Reason.SILENT, now_ns) if is_over else []
        is_ending = state.stands and now_ns - state.ended_ns < config.ending_ns  # who is ended first is not the reason
        pairs, before = state.connections.pairs(), state.explained
        is_same = before is not None and not state.changed and before[1:] == (len(known), pairs)
        if before is None or not (is_ending or is_same):
            silent = [process for name, process in state.processes.items() if name in state.silent]
            explained = informed(explain(known), known, silent, state.world_size)
            explained = with_stalled_links(explained, pairs, state.processes.values())
            state.explained, state.changed = (explained, len(known), pairs), False
        assert state.explained is not None
        explanation, *_ = state.explained
        is_unknown = explanation.reason is Reason.INSUFFICIENT or quiet_ns < config.hung_ns
        if (
            explanation.row is None and not explanation.links and is_unknown
        ):  # nobody waits, as far as is known: they may compute
            return self._publish_end(unit, state, MOVING, "", now_ns)
        is_awaited = explanation.waiting or explanation.links
        name = HUNG if quiet_ns >= config.hung_ns and is_awaited else STANDING
        rows = standing_rows(explanation, config.most_named)
        start_ns = state.head["start_ns"] if state.stands else now_ns - quiet_ns
        return self._publish(unit, state, name, rows, start_ns, now_ns)

    def _publish_end(self, unit: str, state: JobProgress, name: str, reason: str, now_ns: int) -> list[Batch]:
        """Return the last result of a standstill, which takes back every name."""
        if not state.stands:
            return []
        state.changed = True
        rows = [HangRow(WHOLE_JOB, reason=reason), *(HangRow(*named) for named in state.head["named"])]
        return self._publish(unit, state, name, rows, state.head["start_ns"], now_ns)

    def _publish(
        self, unit: str, state: JobProgress, name: str, rows: Sequence[HangRow], start_ns: int, now_ns: int
    ) -> list[Batch]:
        """Return a result as a batch, or nothing if it is the published one."""
        before, now = state.head, digest(name, rows)
        if before.get("digest") == now and before["state"] == name:
            return []
        started_ns = self.attempts.of_unit(unit).started_ns()
        head = {
            "attempt": started_ns,
            "episode": before["episode"] + (not state.stands),
            "revision": before["revision"] + 1 if state.stands else 0,
            "state": name,
            "start_ns": start_ns,
            "sequence": before["sequence"] + 1,
            "digest": now,
            "ends": state.connections.known_ends(state.explained[2] if state.explained and name in _STATED else ()),
            "named": [[row.rank, row.host, row.gpu_uuid] for row in rows if row.rank != WHOLE_JOB],
        }
        job, run = split_run_key(unit)
        envelope = {
            "job": job,
            "run": run,
            "world_size": state.world_size,
            "sequence": before["sequence"],
            "base_time_ns": now_ns,
            "sent_ns": now_ns,
            "attempt_start_ns": started_ns,
            "episode": head["episode"],
            "revision": head["revision"],
            "state": name,
            "start_ns": start_ns,
            "time_ns": now_ns,
            "ranks_seen": len({process.rank for process in state.processes.values()}),
        }
        batch = hang_batch(rows, envelope)
        state.head = head
        self._in_flight.add(unit, envelope["sequence"], (batch, head), now_ns)
        return [batch]

    def _mark_sent(self, unit: str, batch: Batch) -> None:
        """Store the batch as what is published."""
        sent = self._in_flight.settle(unit, int(batch.envelope["sequence"]))
        if sent is not None and unit in self.states and self.states[unit].head["sequence"] == sent[1]["sequence"]:
            state = self.states[unit]
            value = {"world_size": state.world_size, "published": sent[1]}
            self.store[key("h", unit)] = pack_rows(-1, value, np.zeros(0, NO_ROWS))

    def _resend(self, now_ns: int) -> list[Batch]:
        """Return the results that were not acknowledged for too long; a superseded one must not follow the newer."""
        out = []
        for unit, sequence, (batch, head) in self._in_flight.expired(now_ns - self.config.resend_ns):
            self._in_flight.settle(unit, sequence)
            if unit in self.states and self.states[unit].head["sequence"] == head["sequence"]:
                self._in_flight.add(unit, sequence, (batch, head), now_ns)
                out.append(batch)
        return out

    def _forget(self, unit: str) -> None:
        """Delete all state of a run."""
        for process_id in self.states.pop(unit).processes:
            self.store.pop(key("e", process_id, unit), None)
        self.store.pop(key("h", unit), None)
