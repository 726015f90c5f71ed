"""Store the state of one stage in one partition: a mapping in memory whose changes go to a changelog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping

#: Sends one change (None = tombstone) to the changelog; the awaitable is done when the broker has it.
Write = Callable[[str, bytes | None], Awaitable[object]]


class PartitionStore(MutableMapping[str, bytes]):
    """Maps keys to bytes and sends every change to the changelog.

    Owned by `StageRunner`; used in the worker's event loop; nothing blocks. `data`: the recovered state. Changes are
    pending until `take_pending` returns them. A closed store (its partition was revoked) ignores changes: the new owner
    replays unacknowledged messages.
    """

    def __init__(self, data: dict[str, bytes], write: Write) -> None:
        self._data = data
        self._write = write
        self._pending: list[Awaitable[object]] = []
        self.closed = False

    def __getitem__(self, key: str) -> bytes:
        return self._data[key]

    def __setitem__(self, key: str, value: bytes) -> None:
        if not self.closed:
            self._data[key] = value
            self._pending.append(self._write(key, value))

    def __delitem__(self, key: str) -> None:
        if not self.closed:
            del self._data[key]
            self._pending.append(self._write(key, None))

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def write_again(self, key: str) -> None:
        """Send the value of a key once more, or that it has none."""
        self._pending.append(self._write(key, self._data.get(key)))

    def take_pending(self) -> list[Awaitable[object]]:
        """Return the changes since the last call. Await them all before acknowledging the message that caused them."""
        taken, self._pending = self._pending, []
        return taken
