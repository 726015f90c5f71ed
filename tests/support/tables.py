"""Batches and records as tables, as stages read them."""

import numpy as np

from drumline.schemas.codec import Codec, Received
from drumline.schemas.parts.merged import merged
from drumline.schemas.record_table import BatchTable
from drumline.sinks.ranges.reading import read_all
from drumline.streams.offline import applied


def apply_batch(stage, batch, offset, now_ns):
    """Apply one batch to a stage. Raises the error of its unit."""
    return applied(stage, BatchTable.of([batch]), np.array([offset]), now_ns)


def open_all(codec, topic, values):
    """Return records with their kind."""
    return [codec.open(topic, Received(value)) for value in values]


def merged_record(schema, number, batches):
    """Return the record of batches with a schema and its id."""
    return merged(schema, number, BatchTable.of(batches))


class RecordParts:
    """The parts of a record, each read when it is asked for. `merged`: all of them, of a record that has a table."""

    def __init__(self, codec, topic, record):
        self.codec, self.topic, self.record, self.job = codec, topic, record, record.job
        self.merged = codec.merged_table(topic, [record]) if record.writer is not None else None

    @property
    def values(self):
        return self.codec.values(self.topic, self.record)

    def check_origin(self, topic, envelope):
        self.record.check_origin(topic, envelope)


def parts_of(codec, topic, value, key=None, headers=None, bounded=True):
    """Return the parts of a record, None if it is a batch."""
    record = codec.open(topic, Received(value, 0, key, headers), bounded=bounded)
    if record.record is None:
        return None
    parts = RecordParts(codec, topic, record)
    assert record.writer is not None or parts.values
    return parts


def read_one(record, table, codec=None, *, bounded=True):
    """Return the entry of a sink's record that is a batch. `bounded`: False for one that an intent counts as stored."""
    [entry] = read_all(record, table, codec or Codec(), lambda _: not bounded, lambda _: False)
    return entry
