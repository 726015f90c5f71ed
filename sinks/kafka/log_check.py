"""Compare a partition's log in Kafka with what is stored of it: Kafka may have lost the log's end."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException, TopicPartition

from drumline.sinks.errors import LostRecords, TailLost, TransientKafkaError
from drumline.sinks.ranges.disposition import Record
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.resume import removed
from drumline.sinks.ranges.stored_tail import expected_end, replaced

#: How long the sink waits for the bounds of a log that does not have what it should; s.
BOUNDS_S = 5.0


class LogCheck:
    """Checks what the sink's consumer reads; used by the sink's thread only.

    `accept_loss`: a lost end raises TailLost instead of LostRecords.
    """

    def __init__(self, consumer: Consumer, *, accept_loss: bool) -> None:
        self._consumer, self._accept_loss = consumer, accept_loss

    def bounds(self, state: PartitionState) -> tuple[int, int]:
        """Return the first offset and the end of the partition's log, -1 if no broker answers within BOUNDS_S."""
        try:
            place = TopicPartition(state.table.topic.value, state.partition)
            low, end = self._consumer.get_watermark_offsets(place, timeout=BOUNDS_S, cached=False)
            return int(low), int(end)
        except KafkaException:
            return -1, -1

    def check_record(self, state: PartitionState, record: Record) -> None:
        """Check a record that may have been read before. Fatal: LostRecords, or TailLost."""
        if difference := replaced(state, record.offset, record.published_ms):
            raise self._lost(state, self.bounds(state)[1], difference)

    def check_end(self, state: PartitionState, offset: int) -> None:
        """Check the end of the log, as a fetch reports it. Fatal: LostRecords, or TailLost."""
        if offset >= expected_end(state):
            return
        # A new leader may report an end that is too low for a moment, but not when its end is requested.
        _, end = self.bounds(state)
        if 0 <= end < expected_end(state):
            raise self._lost(state, end, "")

    def out_of_range(self, state: PartitionState, text: str) -> Exception:
        """Return the exception to raise where Kafka's log does not have the offset or leader epoch of the consumer."""
        low, end = self.bounds(state)
        if low > state.next_offset:
            return LostRecords(removed(state, state.next_offset, low))
        if low == state.next_offset:  # retention removed the record before, with which the partition was started
            return TransientKafkaError(text)
        return self._lost(state, end, text)

    def _lost(self, state: PartitionState, end: int, difference: str) -> Exception:
        topic = state.table.topic.value
        text = f"{topic} partition {state.partition}: read or stored up to offset {expected_end(state) - 1}, "
        text += f"Kafka's log ends at {end}" if end >= 0 else "Kafka's log does not have that"
        text += f" ({difference})" if difference else ""
        if self._accept_loss:
            return TailLost(topic, state.partition, text)
        return LostRecords(
            f"{text}. Kafka lost records (power loss, unclean leader election) and gives their offsets to new ones, "
            "which are not stored until you start `drumline sink --accept-loss`: it stores them beside the lost ones"
        )
