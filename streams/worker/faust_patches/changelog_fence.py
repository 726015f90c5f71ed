"""Decide which records of a changelog count, when a halted worker wrote behind its successor.

A worker begins a partition with a marker: a record with its epoch. What follows with a lower epoch is ignored, and what
came before the marker was read by the marker's writer. So all readers agree with the state that the writer has in
memory. Of two markers with one epoch the first one wins, and its writer alone may continue.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from drumline.streams.core.records import key as state_key

#: State key of markers; the value is the writer's id.
MARKER_KEY = state_key("f", "epoch")


def next_epoch(now_ms: int, seen: int) -> int:
    """Return the epoch of a new writer: a time, so that it rises also where group and changelogs were deleted.

    `now_ms`: since 1970, by the broker's clock. `seen`: the highest epoch known in the changelog partition.
    """
    return max(now_ms, seen + 1)


@dataclass(slots=True)
class ChangelogFence:
    """Reads the records of one changelog partition in order.

    `epoch`, `writer`: of the newest valid marker. `stale`: keys whose newest record is ignored; they have to be written
    again, since compaction keeps only the newest record of a key. `fenced`: ignored records.
    """

    epoch: int = 0
    writer: bytes = b""
    stale: set[bytes] = field(default_factory=set)
    fenced: int = 0

    def mark(self, epoch: int, writer: bytes) -> None:
        """Take in a marker."""
        if epoch > self.epoch:
            self.epoch, self.writer = epoch, writer

    def accepts(self, key: bytes, epoch: int | None) -> bool:
        """Return True if a record of state counts.

        Records without an epoch count: no halted worker wrote them.
        """
        if epoch is not None and epoch < self.epoch:
            self.stale.add(key)
            self.fenced += 1
            return False
        if epoch is not None and epoch > self.epoch:  # compaction removed its marker
            self.epoch, self.writer = epoch, b""
        self.stale.discard(key)
        return True
