"""Rows that stay on their host (policy rollup): their topics, and the mark of those that were asked for later."""

from __future__ import annotations

from collections.abc import Iterable

from drumline.schemas.dead_letters import Header
from drumline.schemas.topics import Topic

#: Topics whose rows stay on the host; steps and collectives, which verdicts need, do not.
KEPT_TOPICS = frozenset({Topic.KERNEL, Topic.MEMCPY, Topic.RANGE})
#: Header of a batch whose rows its host has counted in windows. Without the prefix of drumline's own headers, so that
#: it stays with a record when its dead letter is replayed.
COUNTED_HEADER = "windows.counted"
COUNTED: tuple[Header, ...] = ((COUNTED_HEADER, b"host"),)


def is_counted(headers: Iterable[Header] | None) -> bool:
    """Return whether the windows of a record's rows are published already."""
    return any(name == COUNTED_HEADER for name, _ in headers or ())
