"""Read one record again: the sink keeps the bytes of a record only while it does not decode."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.kafka.errors import REQUEST_S
from drumline.sinks.ranges.record import Record


def read_value(consumer: Consumer, record: Record) -> bytes | None:
    """Return the value at the record's offset; blocks. `consumer`: see record_times.reader.

    Retry later: TransientKafkaError, also if Kafka does not have the record any more.
    """
    consumer.assign([TopicPartition(record.topic, record.partition, record.offset)])
    until = time.monotonic() + REQUEST_S
    try:
        while time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None and message.offset() == record.offset:
                return message.value()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                break
    finally:
        consumer.unassign()
    raise TransientKafkaError(
        f"{record.topic} partition {record.partition}: Kafka does not return the record at offset {record.offset}"
    )
