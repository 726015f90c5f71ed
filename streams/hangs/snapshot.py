"""The newest progress of one process, as gpu.progress.v1 has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.record_table import Ints, RecordTable

#: States of a process that has ended.
ENDED = frozenset({"killed", "exited"})
#: Columns that change when a process moves, or another one has to be named.
_MOVING = ("called", "begun", "ended", "closed", "peer", "communicator")
#: Dictionaries of which the same holds.
_MARKING = ("communicators", "states", "ras_answers")
_TEXTS = {
    "communicator": "communicators",
    "operation": "operations",
    "datatype": "datatypes",
    "last_operation": "last_operations",
    "last_datatype": "last_datatypes",
    "ras_json": "ras_answers",
}


class ProgressRow(NamedTuple):
    """Holds a row of gpu.progress.v1: a communicator, or, with `peer` >= 0, the sends to it or the receives from it."""

    communicator: str
    comm_rank: int
    ranks: int
    peer: int
    called: int
    begun: int
    ended: int
    exact: int
    closed: int
    operation: str
    datatype: str
    elements: int
    bytes: int
    last_operation: str
    last_datatype: str
    last_elements: int
    step: int
    ras_json: str = ""


@dataclass(slots=True)
class ProcessProgress:
    """Holds the newest record of a process.

    Attributes:
        state: running, stopped, killed or exited.
        quiet_ns: time for which the process had not moved, by its own clock.
        seen_ns: worker's clock at the record, 0 = restored.
        mark: changes when the process moves; empty where it surely has moved (`processes_of`).
        size: number of rows.
    """

    rank: int
    host: str
    gpu_uuid: str
    sequence: int
    state: str
    quiet_ns: int
    seen_ns: int
    mark: bytes
    rows: tuple[ProgressRow, ...] = ()
    size: int = 0
    read: Callable[[], Batch] | None = field(default=None, repr=False)

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.state in ENDED

    def progress(self) -> tuple[ProgressRow, ...]:
        """Return the rows; converted at the first call, as they are of no use while the job moves."""
        if self.read is not None:
            batch = self.read()
            lists = [
                batch.strings(name, _TEXTS[name]).tolist() if name in _TEXTS else batch.columns[name].tolist()
                for name in ProgressRow._fields
            ]
            self.rows, self.read = tuple(ProgressRow(*values) for values in zip(*lists, strict=True)), None
        return self.rows

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        names = ("rank", "host", "gpu_uuid", "sequence", "state", "quiet_ns")
        return {**{name: getattr(self, name) for name in names}, "rows": [list(row) for row in self.progress()]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ProcessProgress:
        """Return what `to_json` gave."""
        rows = tuple(ProgressRow(*row) for row in value["rows"])
        return cls(**{**value, "rows": rows, "size": len(rows), "seen_ns": 0, "mark": b""})


class Report(NamedTuple):
    """Holds what parts report of a process: its newest progress, None = heartbeats; and the number of those parts."""

    process_id: str
    process: ProcessProgress | None
    parts: int = 1


def processes_of(parts: RecordTable, now_ns: int, standing_ns: int) -> Iterator[Report]:
    """Yield what parts report of their processes, in their order.

    A process that has been quiet for less than `standing_ns` has moved: it gets no mark, which nobody compares. Where
    all of them have moved, only the last part of each tells anything.
    """
    if not parts.rows:  # heartbeats only
        yield from (Report(process_id, None) for process_id in parts.text("process_id"))
        return
    quiet, first = _quiet(parts)
    counts = np.ones(parts.parts, np.int64)
    if parts.counts.all() and (quiet < standing_ns).all() and not _ended(parts):
        kept, counts = _last_of_each(parts, parts.number("sequence"))
        parts = parts.only(kept)  # they stay in memory until the next ones come
        quiet, first = _quiet(parts)
    columns, ends = parts.columns, parts.ends
    numbers = (parts.number(name).tolist() for name in ("rank", "sequence"))
    texts = (parts.text(name) for name in ("host", "gpu_uuid", "process_id", *_MARKING))
    of_rows = quiet.tolist(), columns["state"][first].tolist(), ends[:-1], ends[1:]
    states_of = parts.lists("states")
    of_parts = zip(range(parts.parts), counts.tolist(), *numbers, *texts, *of_rows, strict=True)
    for part, count, rank, sequence, host, gpu_uuid, process_id, *marks, quiet_ns, state, begin, end in of_parts:
        if begin == end:
            yield Report(process_id, None)
            continue
        mark = b""
        if quiet_ns >= standing_ns:
            moving = (columns[name][begin:end].tobytes() for name in _MOVING)
            mark = b"".join((*moving, *(text.encode() for text in marks)))
        process = ProcessProgress(
            rank, host, gpu_uuid, sequence, str(states_of[part][state]), quiet_ns, now_ns, mark, size=end - begin,
            read=partial(parts.batch, part),
        )  # fmt: skip
        yield Report(process_id, process, count)


def _quiet(parts: RecordTable) -> tuple[Ints, Ints]:
    """Return for how long the process of each part was quiet, and its first row."""
    first: Ints = np.minimum(np.array(parts.ends[:-1]), parts.rows - 1)
    return parts.columns["quiet_ns"][first], first


def _ended(parts: RecordTable) -> bool:
    """Return whether some processes may have ended, by the states that parts name."""
    return not ENDED.isdisjoint(state for states in {*parts.text("states")} for state in json.loads(states))


def _last_of_each(parts: RecordTable, sequences: Ints) -> tuple[Ints, Ints]:
    """Return the last part of each process, rising, and the number of its parts; all parts where they do not rise."""
    known: dict[str, int] = {}
    process = np.array([known.setdefault(name, len(known)) for name in parts.text("process_id")])
    order = np.argsort(process, kind="stable")
    same = process[order[1:]] == process[order[:-1]]
    if (same & (sequences[order[1:]] <= sequences[order[:-1]])).any():
        return np.arange(parts.parts), np.ones(parts.parts, np.int64)
    ends = np.flatnonzero(np.append(~same, True))
    last, counts = order[ends], np.diff(ends, prepend=-1)
    by_part = np.argsort(last)
    return last[by_part], counts[by_part]
