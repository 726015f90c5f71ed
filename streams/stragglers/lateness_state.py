"""Lateness of one run, in a store of bytes: a value has some steps of a communicator, or of a slice of its ranks.

Keys: l|first step|communicator|run_key, l|first step.slice|... of a slice. The index of each block is with its other
cells (state.py).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.records import (
    Rows,
    StateRecord,
    as_json,
    key,
    pack_text,
    parse_head,
    unpack_rows,
)
from drumline.streams.stragglers.lateness_rows import KEPT_ROW, WHOLE

#: Steps of a value: as many as the records of a host are joined for at most, in a job of a step a second.
STEPS_OF_VALUE = 4
#: Bytes of values that are read together: caches hold them.
PASS_BYTES = 2 << 20
Parts = Mapping[int, tuple[int, ...]]
#: (first step, communicator) -> part (slice, or WHOLE) -> its steps. Parts are replaced, not changed: `as_parts`.
Index = dict[tuple[int, str], Parts]
_NOTHING = np.zeros(0, KEPT_ROW)
#: Begins the head of a value: before the lists of its steps.
_HEAD = b'{"steps":{'


class StoredLateness(NamedTuple):
    """Holds stored lateness that is read together: `values`, and the communicator of each."""

    names: list[str]
    values: list[bytes]


class LatenessState:
    """Stores the lateness of one run for its `JobState`."""

    __slots__ = ("_block_steps", "_ends", "_run_key", "_store")

    def __init__(self, store: MutableMapping[str, bytes], run_key: str, block_steps: int) -> None:
        self._store, self._run_key, self._block_steps = store, run_key, block_steps
        self._ends: dict[str, str] = {}  # of the keys of communicators

    def first_of(self, step: int) -> int:
        """Return the first step of the value that a step is in; all of them are in one block."""
        return step - step % self._block_steps % STEPS_OF_VALUE

    def firsts_of(self, rows: Rows) -> NDArray[np.int64]:
        """Return the first step of the value that each row is in."""
        firsts: NDArray[np.int64] = rows["step"] - rows["step"] % self._block_steps % STEPS_OF_VALUE
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
        stored = dict(index.get(place, {}))
        replaced = [
            other
            for other, steps in stored.items()
            if (other == WHOLE) != (part == WHOLE) and not lists.keys().isdisjoint(steps)
        ]
        records = {
            known: unpack_rows(self._store[self._key(*place, known)], KEPT_ROW)
            for known in (part, *replaced)
            if known in stored
        }
        if any(offset <= record.offset for record in records.values()):
            return None
        before, known = records.get(part), stored.get(part, ())
        if before is None or lists.keys().isdisjoint(known):  # as nearly always
            changed, kept = True, _NOTHING if before is None else before.rows
            texts = b"".join((b"" if before is None else before.text[len(_HEAD) : -2] + b",", _as_items(lists)))
        else:
            steps = _lists_of(before)
            changed = bool(replaced) or not lists.keys() <= steps.keys() or _differ(before, rows, steps, lists)
            kept, texts = _without(before.rows, steps.keys() & lists.keys()), _as_items({**steps, **lists})
        self._write(place, part, texts, [kept, rows], offset)
        stored[part] = as_steps(dict.fromkeys((*known, *lists)))
        for other in replaced:
            left = {step: text for step, text in _lists_of(records[other]).items() if step not in lists}
            if left:
                stored[other] = as_steps(left)
                self._write(place, other, _as_items(left), [_without(records[other].rows, lists)], offset)
            else:
                del stored[other]
                self._store.pop(self._key(*place, other), None)
        index[place] = as_parts(stored)
        return changed

    def _write(self, place: tuple[int, str], part: int, lists: bytes, rows: Sequence[Rows], offset: int) -> None:
        self._store[self._key(*place, part)] = pack_text(offset, _HEAD + lists + b"}}", *rows)

    def stored(self, index: Index, wanted: Container[int]) -> Iterator[StoredLateness]:
        """Yield the values of a block with some steps, rising by communicator and step; each has all of some
        communicators: those of a large job together fill no memory twice.
        """
        out = StoredLateness([], [])
        last, size = "", 0
        for communicator, first in sorted((communicator, first) for first, communicator in index):
            if communicator != last and size >= PASS_BYTES:
                yield out
                out, size = StoredLateness([], []), 0
            last = communicator
            for part, steps in sorted(index[first, communicator].items()):
                is_inside = any(step in wanted for step in steps)
                value = self._store.get(self._key(first, communicator, part)) if is_inside else None
                if value is not None:
                    out.names.append(communicator)
                    out.values.append(value)
                    size += len(value)
        if out.values:
            yield out

    def drop(self, index: Index) -> None:
        """Delete all values of a block."""
        for place, parts in index.items():
            for part in parts:
                self._store.pop(self._key(*place, part), None)

    def _key(self, first: int, communicator: str, part: int) -> str:
        end = self._ends.get(communicator)
        if end is None:
            end = self._ends[communicator] = key(communicator, self._run_key)
        return f"l|{first}|{end}" if part == WHOLE else f"l|{first}.{part}|{end}"


@lru_cache(1 << 12)
def _once(steps: tuple[int, ...]) -> tuple[int, ...]:
    return steps


def as_steps(steps: Iterable[int]) -> tuple[int, ...]:
    """Return steps as the index has them: those of all communicators are one object."""
    return _once(tuple(steps))


@lru_cache(1 << 12)
def _whole(steps: tuple[int, ...]) -> Parts:
    return {WHOLE: steps}


def as_parts(stored: Parts) -> Parts:
    """Return parts as the index has them: those of all communicators that are whole are one object."""
    return _whole(stored[WHOLE]) if stored.keys() == {WHOLE} else stored


def _as_items(lists: Mapping[int, bytes]) -> bytes:
    return b",".join(b'"%d":%b' % item for item in lists.items())


def _lists_of(record: StateRecord) -> dict[int, bytes]:
    """Return step -> its lists (lateness_rows.py) as JSON, of a value."""
    return {int(step): as_json(lists) for step, lists in record.head["steps"].items()}


def _differ(before: StateRecord, rows: Rows, old: Mapping[int, bytes], new: Mapping[int, bytes]) -> bool:
    """Return whether rows of steps, or what shows hidden waits, are replaced than the stored ones."""
    stored = before.rows[np.isin(before.rows["step"], list(new))]
    if _by_step(stored).tobytes() != _by_step(rows).tobytes():
        return True
    rewritten = (step for step in new if old[step] != new[step])
    return any(parse_head(old[step])["hidden"] != parse_head(new[step])["hidden"] for step in rewritten)


def _by_step(rows: Rows) -> Rows:
    return rows[np.argsort(rows["step"], kind="stable")]


def _without(rows: Rows, steps: Collection[int]) -> Rows:
    return rows[~np.isin(rows["step"], list(steps))] if steps else rows
