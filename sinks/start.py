"""Where a sink goes on in a partition that it just got: what is committed there against what Kafka still has."""

from __future__ import annotations

import structlog

from drumline.sinks.intent import BadIntent, read_metadata
from drumline.sinks.kafka_errors import LostRecords
from drumline.sinks.partition import PartitionState

log = structlog.get_logger()


def go_on(state: PartitionState, offset: int, metadata: str | None, *, accept_loss: bool) -> None:
    """Move `state` from Kafka's first offset to the committed one (negative: none is) and its intent, if they count.
    Raises LostRecords."""
    name, partition, low = state.table.topic.value, state.partition, state.next_offset
    if offset < 0:
        return
    try:
        of_topic, intent = read_metadata(metadata, partition, offset)
    except BadIntent as error:
        raise LostRecords(f"{name} partition {partition}: {error}; another program commits to this group") from None
    if of_topic not in ("", state.topic_id):
        log.warning("topic was created anew; reading it from its start", topic=name, partition=partition)
        return
    if offset < low and not state.compacted:
        lost = low - offset
        if not accept_loss:
            raise LostRecords(
                f"{name} partition {partition}: Kafka removed {lost} records ({offset}..{low - 1}) "
                "before they were stored; `drumline sink --accept-loss` goes on behind them"
            )
        log.error("records were removed before they were stored", topic=name, partition=partition, lost=lost)
        return
    state.next_offset, state.intent = offset, intent
