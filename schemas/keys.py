"""Record keys of all topics, and the process ids of sources that are no operating-system process.

Producers and the stream worker share them: Faust joins topics by partition, so equal keys have to be equal texts.
"""

from __future__ import annotations

import uuid

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

_KEYED_BY_JOB = frozenset(
    {Topic.STEP, Topic.HOST, Topic.PROGRESS, Topic.TRANSFER, Topic.STACK, Topic.LATENESS, Topic.STRAGGLER, Topic.HANG}
)


def record_key(batch: Batch) -> str:
    """Return the Kafka key of a batch, built from its envelope as `schemas.topics` describes it."""
    envelope = batch.envelope
    if batch.topic == Topic.COLLECTIVE:
        return f"{envelope['job']}:{envelope['communicator']}"
    if batch.topic == Topic.DEVICE:
        return str(envelope["job"] or envelope["gpu_uuid"] or envelope["host"])
    if batch.topic in (Topic.NETWORK, Topic.CHECK):
        return str(envelope["host"])
    return str(envelope["job" if batch.topic in _KEYED_BY_JOB else "process_id"])


def derived_process_id(topic: str, *parts: str) -> str:
    """Return the process id under which the stream worker counts the batches of one source in a derived topic."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "|".join((topic, *parts))))
