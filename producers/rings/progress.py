"""Progress of a process in each of its NCCL communicators: rows of gpu.progress.v1. Pure.

Each record holds all communicators, so a reader needs the newest one only. Collectives are counted from the beginning
of a communicator: NCCL's own numbers repeat in replays of CUDA graphs, and are per function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl.kernel_names import hash_text
from drumline.producers.rings.operations import are_drifted, channel_counts, outcomes, taken
from drumline.producers.rings.peers import IS_PEER, are_counted, description_of, forget_peers, note_peers, peer_counts
from drumline.producers.rings.ring_file import DATATYPE_BYTES, DATATYPES, FUNCTIONS, MAX_COMMS, Kind, written
from drumline.producers.rings.state import RingState
from drumline.producers.rings.step_cuts import RingView, untimed_operations
from drumline.schemas.bounds.limits import bounds
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: States of a process.
RUNNING, STOPPED, KILLED, EXITED = STATES = ("running", "stopped", "killed", "exited")
#: Time for which a closed communicator is published: who waits in it is known long before; ns.
CLOSED_NS = 900_000_000_000
#: Age of a call from which it is published as this old; ns.
OLDEST_NS = 365 * 86_400_000_000_000
#: Operations by code, as NCCL names them; "" = none.
OPERATIONS = ("", *FUNCTIONS)
#: Texts of RAS in a record, so that an index has 8 bits.
MOST_TEXTS = 255


class RasAnswer(NamedTuple):
    """Holds what NCCL's RAS stated at a time (ns since the epoch): of each communicator (16 hex digits) a JSON text."""

    time_ns: int
    texts: Mapping[str, str]


NO_ANSWER = RasAnswer(0, {})


def last_moved_ns(records: Array, state: RingState) -> int:
    """Return the host time of the last call, end or mark; 0 = none is known."""
    is_written = written(records, state.position)
    is_operation = is_written & (records["kind"] == Kind.OPERATION)
    times = (records["host_ns"][is_written], records["seen_ns"][is_operation])  # by column: records are slow to copy
    return max(state.moved_ns, *(int(np.minimum(values, np.uint64(1 << 62)).max(initial=0)) for values in times))


def note_passed(records: Array, communicators: Array, state: RingState) -> None:
    """Note in the state what lies in the records that it is about to pass."""
    state.moved_ns = last_moved_ns(records, state)
    state.uncounted |= bool((records["kind"] == Kind.RECORD).any())
    is_operation, is_peer = _is_operation(records, communicators, state), IS_PEER[records["function"]]
    is_collective = is_operation & ~is_peer
    untimed = untimed_operations(records, np.arange(len(records)), state) | are_drifted(records)
    comm = np.where(is_collective, records["comm"], MAX_COMMS)
    for index in np.flatnonzero(np.bincount(comm, minlength=MAX_COMMS)[:MAX_COMMS]).tolist():
        called = np.flatnonzero(comm == index)
        name, last = str(int(communicators["id"][index])), records[called[-1]]
        before = state.passed.get(name, [])
        timed = np.flatnonzero(~untimed[called])
        unknown = len(called) - 1 - int(timed[-1]) if len(timed) else len(called) + sum(before[4:])
        description = [int(last[field]) for field in ("function", "datatype", "count")]
        state.passed[name] = [sum(before[:1]) + len(called), *description, unknown]
    is_peer &= is_operation & (records["peer"] != communicators["rank"][records["comm"] % MAX_COMMS])
    forget_peers({str(int(communicators["id"][index])) for index in _published(communicators, state.moved_ns)}, state)
    note_peers(taken(records, np.flatnonzero(is_peer)), untimed[is_peer], communicators, state)
    if len(state.passed) > MAX_COMMS:
        known = {str(number) for number in communicators["id"].tolist()}
        state.passed = {name: value for name, value in state.passed.items() if name in known}


def progress_table(view: RingView, state: RingState, process: str, ras: RasAnswer = NO_ANSWER) -> Table:
    """Return the rows: one for each communicator, and those of sends and receives (peers.py).

    `process`: its state (STATES). Whoever writes a ring may write any number: what the contract does not allow is cut.
    `ras`: counts while the process has not moved since.
    """
    comms = view.communicators
    at = np.flatnonzero(_is_operation(view.records, comms, state))
    operations = taken(view.records, at)
    untimed = untimed_operations(view.records, at, state) | are_drifted(operations)
    outcome = outcomes(operations, comms["rank"], view.now_ns, untimed, ended=False)
    started = (channel_counts(operations["progress"])[0] > 0) | (outcome.done & ~untimed)
    is_peer = IS_PEER[operations["function"]]
    is_sent = is_peer & (operations["peer"] != comms["rank"][operations["comm"]])  # not to the rank itself
    steps = view.records["step"][written(view.records, state.position)]
    published = _published(comms, view.now_ns)
    opened = (int(comms[name][index]) for index in published for name in ("created_ns", "closed_ns"))
    moved_ns = max(last_moved_ns(view.records, state), *(time_ns for time_ns in opened if time_ns <= view.now_ns), 0)
    uncounted = state.uncounted or view.dropped > 0 or bool((view.records["kind"] == Kind.RECORD).any())
    shared = {
        "exact": int(not uncounted),
        "step": int(steps[-1]) if len(steps) else state.newest,
        "quiet_ns": max(0, view.now_ns - moved_ns),
        "state": STATES.index(process),
    }
    rows: list[dict[str, int]] = []
    for index in published:
        entry = comms[index]
        of_comm = operations["comm"] == index
        its = {**shared, "comm_rank": int(entry["rank"]), "ranks": int(entry["ranks"])}
        its["closed"] = int(entry["closed_ns"] > 0)
        collectives = np.flatnonzero(of_comm & ~is_peer)
        done, begun = outcome.done[collectives], started[collectives]
        rows.append(its | _collectives(operations, collectives, done, begun, entry, state))
        at, name = np.flatnonzero(of_comm & is_sent), str(int(entry["id"]))
        parts = (taken(operations, at), outcome.done[at], started[at], untimed[at])
        for counts in peer_counts(*parts, name, state):
            row = {"peer": counts.peer, "called": counts.called, "begun": counts.begun, "ended": counts.ended}
            row["exact"] = int(not uncounted and are_counted(name, state))
            rows.append(its | row | _described(counts.record) | _last())
    for row in rows:
        row["start_ns"] = min(max(row["start_ns"], view.now_ns - OLDEST_NS), view.now_ns)
    texts = ras.texts if ras.time_ns >= moved_ns else {}
    return progress_rows(rows, [hash_text(int(comms["id"][index])) for index in published], texts)


def _is_operation(records: Array, communicators: Array, state: RingState) -> Array:
    """Return which records are operations of known communicators: bool."""
    is_operation = (records["kind"] == Kind.OPERATION) & written(records, state.position)
    comm = records["comm"] % MAX_COMMS
    is_operation &= (records["comm"] < MAX_COMMS) & (records["generation"] == communicators["generation"][comm])
    return np.asarray(is_operation, bool)


def _published(communicators: Array, now_ns: int) -> list[int]:
    """Return the places of the communicators that are open, or were closed a short time ago."""
    closed = communicators["closed_ns"]
    recent = closed > np.uint64(max(0, now_ns - CLOSED_NS))
    used = (communicators["generation"] > 0) & (communicators["id"] > 0) & (communicators["ranks"] > 0)
    return list(np.flatnonzero(used & ((closed == 0) | recent)).tolist())


def _collectives(
    operations: Array, called: Array, done: Array, started: Array, entry: Array, state: RingState
) -> dict[str, int]:
    """Return the counts of a communicator's collectives, the first that has not ended, and the one before it.

    `called`: places of those behind the ring's position. Those that NCCL does not measure count as ended, not as begun:
    `begun` < `ended` states that the last ends are not known.
    """
    before = state.passed.get(str(int(entry["id"])), [])
    passed, unknown = (before[0], sum(before[4:])) if before else (0, 0)
    waiting, begun = np.flatnonzero(~done), np.flatnonzero(started)
    at = int(waiting[0]) if len(waiting) else len(called) - 1
    row = {
        "peer": -1,
        "called": passed + len(called),
        "begun": passed + (int(begun[-1]) + 1 if len(begun) else -unknown),
        "ended": passed + (at if len(waiting) else len(called)),
    }
    last = _last(*before[1:4])
    if at >= 1:
        last = _last(*(int(operations[called[at - 1]][name]) for name in ("function", "datatype", "count")))
    if at >= 0:
        return row | _described(description_of(operations[called[at]])) | last
    operation = {"operation": last["last_operation"], "datatype": last["last_datatype"], "bytes": 0}
    return row | operation | {"elements": last["last_elements"], "start_ns": int(entry["created_ns"])} | _last()


def _described(record: Sequence[int]) -> dict[str, int]:
    function, datatype, elements, host_ns = record
    datatype = datatype if datatype < len(DATATYPES) else 0
    return {
        "operation": function if function < len(OPERATIONS) else 0,
        "datatype": datatype,
        "elements": elements,
        "bytes": elements * DATATYPE_BYTES[datatype],
        "start_ns": host_ns,
    }


def _last(function: int = 0, datatype: int = 0, elements: int = 0) -> dict[str, int]:
    known = function if function < len(OPERATIONS) else 0
    return {
        "last_operation": known,
        "last_datatype": datatype if datatype < len(DATATYPES) else 0,
        "last_elements": elements,
    }


def progress_rows(
    rows: Sequence[Mapping[str, int]], communicators: Sequence[str], ras: Mapping[str, str] = NO_ANSWER.texts
) -> Table:
    """Return rows, by their columns, as a table. `communicators`: of the rows of collectives; what a row lacks is 0.

    `ras`: what NCCL's RAS stated, by communicator.
    """
    limits = bounds(Topic.PROGRESS)
    answers = ["", *(ras[name] for name in dict.fromkeys(communicators) if name in ras)][: MOST_TEXTS + 1]
    places = np.cumsum([0, *(row["peer"] < 0 for row in rows)])[1:] - 1  # of each row's communicator
    columns: dict[str, Array] = {}
    for column in model(Topic.PROGRESS).columns:
        if column.name == "communicator":
            columns[column.name] = places.astype(column.dtype)
            continue
        if column.name == "ras_json":
            names = (
                communicators[at] if row["peer"] < 0 else "" for row, at in zip(rows, places.tolist(), strict=True)
            )
            numbers = [_answer(name, ras, answers) for name in names]
            columns[column.name] = np.array(numbers, column.dtype)
            continue
        limit = limits[column.name]
        low, high = (0, len(OPERATIONS)) if column.dictionary else (int(limit.low), int(limit.high))
        values = [min(max(row.get(column.name, 0), low), high) for row in rows]
        columns[column.name] = np.array(values, column.dtype)
    texts = {"operations": OPERATIONS, "datatypes": DATATYPES, "last_operations": OPERATIONS}
    texts |= {"last_datatypes": DATATYPES, "states": STATES}
    return Table(columns, {"communicators": communicators, "ras_answers": answers, **texts})


def _answer(communicator: str, ras: Mapping[str, str], answers: Sequence[str]) -> int:
    text = ras.get(communicator, "")
    return answers.index(text) if text in answers else 0
