"""Kernel names that the sink meets for the first time.

They go into `kernel_names` before the first rows that have them, so no row is ever without a name of people's.
"""

from __future__ import annotations

from collections.abc import Iterable

from drumline.schemas.topics import Topic
from drumline.sinks.ranges.record import Entry

#: Topics whose dictionary `names` holds kernel names.
TOPICS = frozenset({Topic.KERNEL, Topic.KERNEL_FREQUENCY})
#: Names remembered as written; beyond it they are forgotten, and written again, which changes nothing.
REMEMBERED = 200_000


class KernelNames:
    """What this process has written so far."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def new(self, topic: Topic, entries: Iterable[Entry]) -> list[str]:
        """Names of the entries' batches that are not written yet, sorted."""
        if topic not in TOPICS:
            return []
        found: set[str] = set()
        for entry in entries:
            if entry.batch is not None:
                found.update(entry.batch.envelope["names"])
        return sorted(found - self._written)

    def written(self, names: Iterable[str]) -> None:
        """They are in the table now."""
        if len(self._written) > REMEMBERED:
            self._written.clear()
        self._written.update(names)
