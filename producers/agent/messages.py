"""Conversion of the spool's frames to Kafka messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from drumline.producers.spool.envelope import read_envelope
from drumline.producers.spool.segment_format import LOSS, Frame
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import header
from drumline.schemas.topics import Topic


def values(frame: Frame, ids: Mapping[str, int], codec: Codec) -> Iterator[bytes]:
    """Yield the Kafka values of a frame: the batch itself, or an empty batch for each one that was lost.

    `ids`: topic -> id of the schema that its writer used. Raises KeyError for a topic without one, and ValueError where
    a loss cannot be decoded.
    """
    schema = header(ids[frame.topic])
    if frame.kind != LOSS:
        yield schema + frame.body
    else:
        yield from losses(frame, codec)


def losses(frame: Frame, codec: Codec) -> Iterator[bytes]:
    """Yield an empty batch in the place of each lost one, or of a batch that Kafka rejects.

    So sequences have no gap, and the last one's `dropped_before` holds the number of missing rows. Raises ValueError.
    """
    shared = read_envelope(frame.topic, frame.body)
    lost = frame.rows + (shared["dropped_before"] if frame.kind != LOSS else 0)
    if frame.topic == Topic.COLLECTIVE:
        shared["communicator"] = frame.key.rpartition(":")[2]
    last = shared["sequence"]
    if frame.batches > last + 1:
        raise ValueError(f"a loss of {frame.batches} batches ends with sequence {last}")
    for sequence in range(last - frame.batches + 1, last + 1):
        dropped = lost if sequence == last else 0
        yield codec.encode(Batch(frame.topic, {**shared, "sequence": sequence, "rows": 0, "dropped_before": dropped}))


def sent_and_first_ns(frame: Frame) -> tuple[int, int]:
    """Return when a batch was sent by its producer, and the time of its first row; ns since the epoch.

    A batch without rows has none, so the first time stands for both. Raises ValueError where it cannot be decoded.
    """
    shared = read_envelope(frame.topic, frame.body)
    sent = int(shared["sent_ns"])
    return sent, int(shared["base_time_ns"]) or sent
