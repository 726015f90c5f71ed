"""Lateness of one run, in a store of bytes: a value has some steps of a communicator, or of a slice of its ranks.

Keys: l|first step|communicator|run_key, l|first step.slice|... of a slice. The index of each window is with its other
cells (state.py).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.records import (
    Rows,
    StateRecord,
    as_json,
    key,
    pack_text,
    parse_head,
    stacked,
    unpack_rows,
)
from drumline.streams.stragglers.lateness_rows import KEPT_ROW, WHOLE

#: Steps of a value: as many as the records of a host are joined for at most, in a job of a step a second.
STEPS_OF_VALUE = 4
#: Bytes of values that are read together: caches hold them.
PASS_BYTES = 2 << 20
#: (first step, communicator) -> part (slice, or WHOLE) -> step -> its lists (lateness_rows.py) as JSON.
Index = dict[tuple[int, str], dict[int, dict[int, bytes]]]
_NOTHING = np.zeros(0, KEPT_ROW)


class StoredLateness(NamedTuple):
    """Holds stored lateness that is read together: `values`, the communicator of each, and the lists of their steps."""

    names: list[str]
    values: list[bytes]
    lists: list[tuple[str, int, bytes]]


class LatenessState:
    """Stores the lateness of one run for its `JobState`."""

    __slots__ = ("_ends", "_run_key", "_store", "_window_steps")

    def __init__(self, store: MutableMapping[str, bytes], run_key: str, window_steps: int) -> None:
        self._store, self._run_key, self._window_steps = store, run_key, window_steps
        self._ends: dict[str, str] = {}  # of the keys of communicators

    def first_of(self, step: int) -> int:
        """Return the first step of the value that a step is in; all of them are in one window."""
        return step - step % self._window_steps % STEPS_OF_VALUE

    def firsts_of(self, rows: Rows) -> NDArray[np.int64]:
        """Return the first step of the value that each row is in."""
        firsts: NDArray[np.int64] = rows["step"] - rows["step"] % self._window_steps % STEPS_OF_VALUE
        return firsts

    def parts(self, index: Index, step: int, communicator: str) -> list[int]:
        """Return the stored parts of a step of a communicator: its slices, or WHOLE."""
        stored = index.get((self.first_of(step), communicator), {})
        return sorted(part for part, steps in stored.items() if step in steps)

    def rows(self, step: int, communicator: str, part: int = WHOLE) -> Rows:
        """Return the KEPT_ROW rows of a part of a communicator in a step."""
        data = self._store.get(self._key(self.first_of(step), communicator, part))
        rows = _NOTHING if data is None else unpack_rows(data, KEPT_ROW).rows
        of_step: Rows = rows[rows["step"] == step]
        return of_step

    def replace(
        self, index: Index, place: tuple[int, str], part: int, rows: Rows, lists: Mapping[int, bytes], offset: int
    ) -> bool | None:
        """Replace steps of a value, and return whether that changes them; None if the offset is not new to it.

        `place`: first step and communicator. `lists`: of all steps of `rows`, and of those that have none any more.
        Slices of a step replace the whole of it, and the whole its slices.
        """
        stored = index.get(place, {})
        replaced = [
            other
            for other, steps in stored.items()
            if (other == WHOLE) != (part == WHOLE) and not steps.keys().isdisjoint(lists)
        ]
        records = {
            known: unpack_rows(self._store[self._key(*place, known)], KEPT_ROW)
            for known in (part, *replaced)
            if known in stored
        }
        if any(offset <= record.offset for record in records.values()):
            return None
        before, steps = records.get(part), stored.get(part, {})
        changed = bool(replaced) or lists.keys() != lists.keys() & steps.keys()
        changed = changed or _differ(before, rows, steps, lists)
        kept = _NOTHING if before is None else _without(before.rows, steps.keys() & lists.keys())
        self._write(place, part, {**steps, **lists}, stacked([kept, rows]), offset)
        index.setdefault(place, {})[part] = {**steps, **lists}
        for other in replaced:
            left = {step: text for step, text in stored[other].items() if step not in lists}
            if left:
                stored[other] = left
                self._write(place, other, left, _without(records[other].rows, lists), offset)
            else:
                del stored[other]
                self._store.pop(self._key(*place, other), None)
        return changed

    def _write(self, place: tuple[int, str], part: int, lists: Mapping[int, bytes], rows: Rows, offset: int) -> None:
        steps = b",".join(b'"%d":%b' % item for item in lists.items())
        self._store[self._key(*place, part)] = pack_text(offset, b'{"steps":{%b}}' % steps, rows)

    def stored(self, index: Index, wanted: Container[int]) -> Iterator[StoredLateness]:
        """Yield the values of a window with some steps, rising by communicator and step; each has all of some
        communicators: those of a large job together fill no memory twice.
        """
        out = StoredLateness([], [], [])
        last, size = "", 0
        for communicator, first in sorted((communicator, first) for first, communicator in index):
            if communicator != last and size >= PASS_BYTES:
                yield out
                out, size = StoredLateness([], [], []), 0
            last = communicator
            for part, lists in sorted(index[first, communicator].items()):
                inside = [(communicator, step, text) for step, text in lists.items() if step in wanted]
                value = self._store.get(self._key(first, communicator, part)) if inside else None
                if value is not None:
                    out.names.append(communicator)
                    out.values.append(value)
                    size += len(value)
                    out.lists.extend(inside)
        if out.values:
            yield out

    def drop(self, index: Index) -> None:
        """Delete all values of a window."""
        for place, parts in index.items():
            for part in parts:
                self._store.pop(self._key(*place, part), None)

    def _key(self, first: int, communicator: str, part: int) -> str:
        end = self._ends.get(communicator)
        if end is None:
            end = self._ends[communicator] = key(communicator, self._run_key)
        return f"l|{first}|{end}" if part == WHOLE else f"l|{first}.{part}|{end}"


def as_text(lists: Mapping[str, Any]) -> bytes:
    """Return the lists of a step as the index has them."""
    return as_json(lists)


def _differ(before: StateRecord | None, rows: Rows, old: Mapping[int, bytes], new: Mapping[int, bytes]) -> bool:
    """Return whether rows of steps, or what shows hidden waits, are replaced than the stored ones."""
    if before is None:
        return True
    stored = before.rows[np.isin(before.rows["step"], list(new))]
    if _by_step(stored).tobytes() != _by_step(rows).tobytes():
        return True
    rewritten = (step for step in new if old[step] != new[step])
    return any(parse_head(old[step])["hidden"] != parse_head(new[step])["hidden"] for step in rewritten)


def _by_step(rows: Rows) -> Rows:
    return rows[np.argsort(rows["step"], kind="stable")]


def _without(rows: Rows, steps: Collection[int]) -> Rows:
    return rows[~np.isin(rows["step"], list(steps))] if steps else rows
