"""Track the kernel names that this sink has written to `kernel_names`.

Names are written before the first rows that have them, so every row has a human-readable name.
"""

from __future__ import annotations

from collections.abc import Iterable

from drumline.schemas.topics import Topic
from drumline.sinks.ranges.disposition import RangeEntry

#: Topics whose dictionary `names` holds kernel names.
NAMED_TOPICS = frozenset({Topic.KERNEL, Topic.KERNEL_FREQUENCY, Topic.LAUNCH_COUNT})
#: The most names that are remembered as written; beyond it they are written again, which changes nothing.
REMEMBERED = 200_000


class KernelNames:
    """Remembers the kernel names that this process has written.

    The insert threads share it without a lock: at worst a name is written twice.
    """

    def __init__(self) -> None:
        self._written: set[str] = set()

    def new(self, topic: Topic, entries: Iterable[RangeEntry]) -> list[str]:
        """Return the names in the entries' batches that are not written yet, sorted."""
        if topic not in NAMED_TOPICS:
            return []
        names: set[str] = set()
        for entry in entries:
            if entry.batch is not None:
                names.update(entry.batch.envelope["names"])
        return sorted(names - self._written)

    def mark_written(self, names: Iterable[str]) -> None:
        """Record that the names are in the table."""
        if len(self._written) > REMEMBERED:
            self._written.clear()
        self._written.update(names)
