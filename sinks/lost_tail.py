"""Continue a partition behind a loss of stored records that the operator has accepted."""

from __future__ import annotations

from contextlib import closing

import structlog

from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.inserts.ledger import Ledger
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.record_times import record_times
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.stored_tail import continued_at, expected_end, first_difference, log_spans

log = structlog.get_logger()


def continue_behind(kafka: SinkConsumer, ledger: Ledger, state: PartitionState) -> None:
    """Continue at the first offset at which Kafka's log is not the stored one, as another log.

    Its records get other tokens, so they are stored beside the lost ones. Blocks for some requests to Kafka and
    ClickHouse, as many as the bits of an offset. Retry later: TransientKafkaError, TransientError.
    """
    topic, partition, known = state.table.topic.value, state.partition, expected_end(state)
    low, end = kafka.logs.bounds(state)
    if end < 0:
        raise TransientKafkaError(f"{topic} partition {partition}: no broker states the bounds of its log")
    with closing(kafka.reader()) as reader:

        def same(offset: int) -> bool:
            for log_name, first, last in log_spans(state.topic_id, offset, known):
                stored = ledger.first_from(topic, log_name, partition, first)
                if stored is not None and stored.offset <= last:
                    times = record_times(reader, {(topic, partition): stored.offset})
                    return times.get((topic, partition)) == stored.published_ms
            return False

        first = first_difference(low, max(low, min(end, known)), same)
    kafka.continue_with(state, continued_at(state.topic_id, first), first)
    log.error(
        "continuing with Kafka's new log; its records are stored beside the lost ones",
        topic=topic, partition=partition, first=first, lost=known - first,
    )  # fmt: skip
