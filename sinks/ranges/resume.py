"""Find where a newly assigned partition resumes: the commit or the ledger, compared with the offsets in Kafka."""

from __future__ import annotations

import structlog

from drumline.sinks.errors import LostRecords
from drumline.sinks.ranges.intent import BadIntent, read_metadata
from drumline.sinks.ranges.partition import PartitionState

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
    if of_topic not in ("", state.topic_id):
        log.warning("topic was recreated; reading it from its start", topic=name, partition=partition)
        return
    state.has_committed = True
    if offset < low and not state.compacted:
        _removed(state, offset, accept_loss)
        return
    state.next_offset, state.intent = offset, intent


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
    name, partition, low = state.table.topic.value, state.partition, state.next_offset
    lost = low - first
    if not accept_loss:
        raise LostRecords(
            f"{name} partition {partition}: Kafka removed {lost} records ({first}..{low - 1}) "
            "before they were stored; `drumline sink --accept-loss` continues behind them"
        )
    log.error("records were removed before they were stored", topic=name, partition=partition, lost=lost)
