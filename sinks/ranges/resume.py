"""Find where a newly assigned partition resumes: the commit or the ledger, compared with the offsets in Kafka."""

from __future__ import annotations

import structlog

from drumline.sinks.errors import LostRecords, TopicReplaced
from drumline.sinks.ranges.intent import BadIntent, read_metadata
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.stored_tail import StoredTail, kafka_topic_id, losses

log = structlog.get_logger()


def resume_from(state: PartitionState, offset: int, metadata: str | None, *, accept_loss: bool) -> None:
    """Move `state` from Kafka's first offset to the committed one and its intent, if they are valid.

    A negative `offset` means that nothing is committed. Fatal: LostRecords.
    """
    name, partition, low = state.table.topic.value, state.partition, state.next_offset
    if offset < 0:
        return
    try:
        of_topic, intent = read_metadata(metadata, partition, offset)
    except BadIntent as error:
        raise LostRecords(f"{name} partition {partition}: {error}; another program commits to this group") from None
    if of_topic and kafka_topic_id(of_topic) != state.topic_id:
        log.warning("topic was recreated; reading it from its start", topic=name, partition=partition)
        return
    state.topic_id, state.has_committed = of_topic or state.topic_id, True
    state.stored_before = offset if of_topic else 0  # without metadata the offset was set by hand
    if offset < low and not state.compacted:
        _removed(state, offset, accept_loss)
        return
    state.next_offset, state.intent = offset, intent
    if intent is not None and intent.published_ms >= 0:
        state.expected[intent.range.last] = intent.published_ms


def follow_ledger(state: PartitionState, tail: StoredTail | None) -> int:
    """Return the offset after the last one that the ledger has of the state's log, and expect that record in Kafka.

    `tail`: of the newest log in the ledger. Kafka may have lost the commit that names that one; TopicReplaced then:
    commit it and start over. 0: the ledger has nothing of the log.
    """
    if tail is None or losses(tail.topic_id) < losses(state.topic_id):
        return 0
    if tail.topic_id != state.topic_id:
        raise TopicReplaced(state.table.topic.value)
    state.expected[tail.offset] = tail.published_ms
    return tail.offset + 1


def check_ledger(state: PartitionState, stored: int, *, accept_loss: bool) -> None:
    """Check a partition without a commit for records that were removed before they were stored.

    Kafka forgets the commits of a group that is away for long. Only the ledger, which ends before offset `stored` (0:
    has nothing), then shows the loss. Fatal: LostRecords.
    """
    if state.has_committed or state.compacted or not 0 < stored < state.next_offset:
        return
    _removed(state, stored, accept_loss)


def _removed(state: PartitionState, first: int, accept_loss: bool) -> None:
    """Handle the loss of `first` up to `state.next_offset`, where Kafka begins."""
    if not accept_loss:
        raise LostRecords(removed(state, first, state.next_offset))
    log.error(
        "records were removed before they were stored", topic=state.table.topic.value, partition=state.partition,
        lost=state.next_offset - first,
    )  # fmt: skip


def removed(state: PartitionState, first: int, low: int) -> str:
    """Return the message on records `first` up to `low`, where Kafka begins."""
    return (
        f"{state.table.topic.value} partition {state.partition}: Kafka removed {low - first} records "
        f"({first}..{low - 1}) before they were stored; `drumline sink --accept-loss` continues behind them"
    )
