"""Read one record again: the sink keeps value and headers of a record only while it does not decode."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.kafka.errors import REQUEST_S
from drumline.sinks.kafka.record_times import OUT_OF_RANGE
from drumline.sinks.ranges.disposition import Record


def read_again(consumer: Consumer, record: Record) -> bool:
    """Set the record's value and headers, and return True; False if retention or compaction has removed the record.

    Blocks. `consumer`: see record_times.reader. Retry later: TransientKafkaError, also if the log ends before it.
    """
    place = TopicPartition(record.topic, record.partition, record.offset)
    consumer.assign([place])
    until = time.monotonic() + REQUEST_S
    try:
        while time.monotonic() < until:
            message: Any = consumer.poll(0.5)
            if message is None:
                continue
            error = message.error()
            if error is None and message.offset() == record.offset:
                record.value, record.headers = message.value(), list(message.headers() or [])
                return True
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                if message.offset() > record.offset:
                    return False
                break
            if error.code() in OUT_OF_RANGE:
                if consumer.get_watermark_offsets(place, timeout=REQUEST_S)[0] > record.offset:
                    return False
                break
    except KafkaException as failure:
        raise TransientKafkaError(f"{record.topic} partition {record.partition}: {failure.args[0]}") from None
    finally:
        consumer.unassign()
    raise TransientKafkaError(
        f"{record.topic} partition {record.partition}: Kafka does not return the record at offset {record.offset}"
    )
