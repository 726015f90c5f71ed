"""The Kafka key of what the processors write: the same text that producers use, so that equal keys meet."""

from __future__ import annotations

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

_BY_JOB = frozenset({Topic.LATENESS, Topic.STRAGGLER})


def record_key(batch: Batch) -> bytes:
    """Job for lateness and verdicts, process id for windows."""
    field = "job" if batch.topic in _BY_JOB else "process_id"
    return str(batch.envelope[field]).encode()
