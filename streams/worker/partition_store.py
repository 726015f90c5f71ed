"""Store the state of one stage in one partition: a mapping in memory whose changes go to a changelog.

A store without `order` writes each change at once. One with it collects changes for a checkpoint (checkpoints.py), so a
value that changes with every record is written once a checkpoint. Those that rest are then compressed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from drumline.streams.worker.compressed_values import (
    BLOCK_BYTES,
    LEAST_BYTES,
    CompressedValue,
    Value,
    compress,
    plain,
)

#: Sends one change (None = tombstone) to the changelog; the awaitable is done when the broker has it.
Write = Callable[[str, bytes | None], Awaitable[object]]
#: A key and its value; None = tombstone.
Change = tuple[str, bytes | None]
#: Sends the first of some changes, as many as one batch of the producer takes; returns their number, and an awaitable
#: that is done when the broker has them.
Send = Callable[[Sequence[Change]], Awaitable[tuple[int, Awaitable[object]]]]
#: Replaces a value in Faust's table by the same one, compressed: no change, so nothing is sent.
Keep = Callable[[str, CompressedValue], None]


def _kind_of(key: str) -> tuple[str, ...]:
    return (key[0],)


def _as_number(time: Sequence[str]) -> tuple[int, str]:
    """Return what orders times that are numbers as text, of which there may be none."""
    return (len(time[0]), time[0]) if time else (0, "")


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """Orders the changes of a checkpoint by the kinds of their keys, which are the first characters.

    `kinds`: as a checkpoint writes them, the others before them; deletions come last. A worker may be killed after any
    of these writes, so what follows in it must not be needed by what precedes. `at_once`: kinds whose values do not
    wait for a checkpoint, as records that are read again do not bring them back; their deletions do. `row_bytes`: kinds
    whose values are compressed in memory once they are written, and bytes of a row of theirs. `block_of`: returns what
    the keys of values have in common that are compressed together, as they come and go together; kind first.
    """

    kinds: str
    at_once: str = ""
    row_bytes: Mapping[str, int] = field(default_factory=dict)
    block_of: Callable[[str], tuple[str, ...]] = _kind_of


class PartitionStore(MutableMapping[str, bytes]):
    """Maps keys to bytes and sends every change to the changelog.

    Owned by `StageRunner`; used in the worker's event loop; nothing blocks. `data`: the recovered state. Changes are
    pending until `take_pending` returns them. A closed store (its partition was revoked) ignores changes: the new owner
    replays unacknowledged messages. `order`: None = no change waits for a checkpoint. `send`: sends changes of
    checkpoints, for less than `write` does one by one. `keep`: see `Keep`.
    """

    def __init__(
        self,
        data: dict[str, Value],
        write: Write,
        order: CheckpointOrder | None = None,
        send: Send | None = None,
        keep: Keep | None = None,
    ) -> None:
        self._data = data
        self._write, self._send, self._keep = write, send, keep
        self._order = order
        self._pending: list[Awaitable[object]] = []
        self._last: Awaitable[object] | None = None  # the newest change that was written at once
        self._changed: dict[str, bool] = {}  # key -> whether the changelog has a value of it
        self._ready: list[Change] = []
        self._written = list(data)  # by the last checkpoint, or recovered
        self._resting: deque[list[str]] = deque()  # blocks of those written before it, and not changed since
        self._older: set[str] = set()  # written by the last checkpoint, which has later ones of their kind
        self._behind: set[str] = set()  # deleted or kept by the last checkpoint, which may still be written
        self.closed = False

    @property
    def is_checkpointed(self) -> bool:
        """Return whether changes wait for a checkpoint."""
        return self._order is not None

    @property
    def has_changes(self) -> bool:
        """Return whether changes wait for a checkpoint, and may still be written."""
        return bool(self._changed or self._ready) and not self.closed

    def __getitem__(self, key: str) -> bytes:
        return plain(self._data[key])

    def __setitem__(self, key: str, value: bytes) -> None:
        if self.closed:
            return
        if self._order is None or self._is_at_once(key, self._order):
            self._data[key] = value
            self._last = self._write(key, value)
            self._pending.append(self._last)
            return
        if key in self._changed and key not in self._data:  # deleted since the checkpoint: all before it comes first
            self._cut()
        self._note(key)
        self._data[key] = value

    def __delitem__(self, key: str) -> None:
        if self.closed:
            return
        if self._order is not None:
            self._note(key)
            del self._data[key]
        else:
            del self._data[key]
            self._pending.append(self._write(key, None))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value without the exception of Mapping.get."""
        value = self._data.get(key)
        return default if value is None else plain(value)

    def __contains__(self, key: object) -> bool:
        """Return whether there is a value, without reading it."""
        return key in self._data

    def size_of(self, key: str) -> int:
        """Return the bytes of a value, without reading it."""
        value = self._data[key]
        return value.length if isinstance(value, CompressedValue) else len(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def _is_at_once(self, key: str, order: CheckpointOrder) -> bool:
        """Return whether a value waits for no checkpoint: of such a kind, and behind no change that does."""
        is_behind = self._ready or key in self._changed or key in self._behind
        return key[0] in order.at_once and not is_behind

    def _note(self, key: str) -> None:
        """Move a key to the end of the changed ones."""
        self._changed[key] = self._changed.pop(key, key in self._data)

    def _cut(self) -> None:
        """Make the changes ready to be written, in their order; a value that came and went leaves none."""
        changes = [(key, self.get(key)) for key, stored in self._changed.items() if stored or key in self._data]
        kinds = "" if self._order is None else self._order.kinds
        changes.sort(key=lambda change: (change[1] is None, kinds.find(change[0][0])))
        self._ready += changes
        self._changed.clear()

    def write_again(self, key: str) -> None:
        """Send the value of a key once more, or that it has none."""
        self._pending.append(self._write(key, self.get(key)))

    def take_pending(self) -> list[Awaitable[object]]:
        """Return the changes since the last call. Await them all before acknowledging the message that caused them."""
        taken, self._pending = self._pending, []
        return taken

    def take_checkpoint(self) -> list[Change]:
        """Return the changes since the last checkpoint, as they are now; pass them to `write` in this order."""
        self._cut()
        taken, self._ready = self._ready, []
        changed = {key for key, _ in taken}
        self._resting = deque([key for key in block if key not in changed] for block in self._resting)
        self._resting.extend(self._blocks(key for key in self._written if key not in changed))
        written = [key for key, value in taken if value is not None]
        self._older = self._older_of(written)
        self._written = [key for key in written if key not in self._older]
        at_once = "" if self._order is None else self._order.at_once
        self._behind = {key for key, value in taken if value is None or key[0] in at_once}
        return taken

    async def write(self, changes: Sequence[Change]) -> tuple[int, list[Awaitable[object]]]:
        """Send the first of some changes of a checkpoint; return their number, and what to await until the broker has
        them.
        """
        if self._send is None:
            sending = [self._write(key, value) for key, value in changes]
            self._compress_behind(changes)
            return len(changes), sending
        at_once = "" if self._order is None else self._order.at_once
        if self._last is not None and any(key[0] in at_once for key, _ in changes):
            last, self._last = self._last, None
            await last  # it took the slower way, and one of these changes may be of the same key
        count, sent = await self._send(changes)
        self._compress_behind(changes[:count])
        return count, [sent]

    def _older_of(self, keys: Sequence[str]) -> set[str]:
        """Return the keys of values that rest as soon as they are written: others of their kind have a later time."""
        order, newest = self._order, dict[tuple[str, ...], tuple[int, str]]()
        if order is None or not order.row_bytes:
            return set()
        groups: dict[tuple[str, ...], list[str]] = {}
        for key in keys:
            if key[0] in order.row_bytes:
                groups.setdefault(order.block_of(key), []).append(key)
        for kind, *time in groups:
            of = kind, *time[1:]
            newest[of] = max(newest.get(of, (0, "")), _as_number(time))
        older = ([kind, *time] for kind, *time in groups if _as_number(time) < newest[kind, *time[1:]])
        return {key for group in older for key in groups[tuple(group)]}

    def _compress_behind(self, sent: Sequence[Change]) -> None:
        """Compress about as many values as were sent, of those that rest."""
        self._resting.extend(self._blocks(key for key, _ in sent if key in self._older and key not in self._changed))
        self._compress(len(sent))

    def _blocks(self, keys: Iterable[str]) -> Iterator[list[str]]:
        """Yield the keys of values that may be compressed together, as numbers in keys rise."""
        order = self._order
        if order is None or not order.row_bytes:
            return
        matched = [key for key in keys if key[0] in order.row_bytes and type(self._data.get(key)) is bytes]
        for _, together in groupby(
            sorted(matched, key=lambda key: (order.block_of(key), len(key), key)), order.block_of
        ):
            block: list[str] = []
            size = 0
            for key in together:
                block.append(key)
                size += self.size_of(key)
                if size >= BLOCK_BYTES:
                    yield block
                    block, size = [], 0
            if size:
                yield block

    def _compress(self, most: int) -> None:
        """Compress about so many values that did not change from one checkpoint to the next."""
        if self._ready or self.closed:  # the table of a lost partition is its next owner's
            return
        while self._resting and most > 0:
            keys = [key for key in self._resting.popleft() if key not in self._changed]
            most -= len(keys)
            if sum(map(self.size_of, keys)) >= LEAST_BYTES:
                self._compress_block(keys)

    def _compress_block(self, keys: Sequence[str]) -> None:
        """Compress values of one kind together."""
        assert self._order is not None
        values = compress([self[key] for key in keys], self._order.row_bytes[keys[0][0]])
        for key, value in zip(keys, values, strict=True):
            self._data[key] = value
            if self._keep is not None:
                self._keep(key, value)
