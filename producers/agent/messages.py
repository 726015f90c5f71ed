"""Conversion of the spool's frames to Kafka messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import fastavro

from drumline.producers.spool.frames import DATA, Frame
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import header
from drumline.schemas.model import ENVELOPE
from drumline.schemas.topics import Topic

_SHARED: Any = fastavro.parse_schema(
    {"type": "record", "name": "Shared", "fields": [{"name": n, "type": k} for n, k in ENVELOPE.items()]},
    named_schemas={},
)


def values(frame: Frame, ids: Mapping[str, int], codec: Codec) -> Iterator[bytes]:
    """Yield the Kafka values of a frame: the batch itself, or an empty batch for each one that was lost.

    `ids`: topic -> id of the schema that its writer used. Raises KeyError for a topic without one, and ValueError where
    a loss cannot be decoded.
    """
    schema = header(ids[frame.topic])
    if frame.kind == DATA:
        yield schema + frame.body
    else:
        yield from losses(frame, codec)


def losses(frame: Frame, codec: Codec) -> Iterator[bytes]:
    """Yield an empty batch in the place of each lost one, or of a DATA frame that Kafka rejects.

    So sequences have no gap, and the last one's `dropped_before` holds the number of missing rows. Raises ValueError.
    """
    shared = _shared(frame)
    lost = frame.rows + (shared["dropped_before"] if frame.kind == DATA else 0)
    if frame.topic == Topic.COLLECTIVE:
        shared["communicator"] = frame.key.rpartition(":")[2]
    last = shared["sequence"]
    if frame.batches > last + 1:
        raise ValueError(f"a loss of {frame.batches} batches ends with sequence {last}")
    for sequence in range(last - frame.batches + 1, last + 1):
        dropped = lost if sequence == last else 0
        yield codec.encode(Batch(frame.topic, {**shared, "sequence": sequence, "rows": 0, "dropped_before": dropped}))


def sent_ns(frame: Frame) -> int:
    """Return when a batch was sent by its producer; ns since the epoch. Raises ValueError where it cannot be
    decoded.
    """
    return int(_shared(frame)["sent_ns"])


def _shared(frame: Frame) -> dict[str, Any]:
    return shared_fields(frame.topic, frame.body)


def shared_fields(topic: str, body: bytes) -> dict[str, Any]:
    """Return the fields that a body of a topic of producers begins with. Raises ValueError."""
    try:
        fields: Any = fastavro.schemaless_reader(BytesIO(body), _SHARED, None)
    except Exception as error:  # fastavro raises whatever the bytes lead it to
        raise ValueError(f"a batch of {topic} cannot be read ({type(error).__name__})") from None
    return dict(fields)
