"""Track assigned partitions: each starts where its committed offset and its intent define."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry import metrics
from drumline.schemas.topics import COMPACTED_TOPICS, Topic
from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.kafka.client_events import ClientEvents
from drumline.sinks.kafka.errors import REQUEST_S, classify, required_acls
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.resume import resume_from
from drumline.sinks.tables.tables import table


class Assignment:
    """Keeps the state of each assigned partition.

    `on_assign` and `on_revoke` are callbacks and run inside `poll`. confluent-kafka carries no exception out of a
    callback, so errors are kept in `events`. `states`: the partitions held now. `member`: the member id of the last
    assignment.
    """

    def __init__(
        self,
        settings: Settings,
        events: ClientEvents,
        topic_ids: Callable[[Iterable[str]], dict[str, str]],
        *,
        accept_loss: bool,
    ) -> None:
        self.states: dict[tuple[str, int], PartitionState] = {}
        self.member = ""
        self._settings, self._events = settings, events
        self._topic_ids, self._accept_loss = topic_ids, accept_loss

    def on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Start the assigned partitions, paused until the ledger has been read."""
        with self._guarded(partitions):
            self._begin(consumer, partitions)

    def on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Drop the states of revoked partitions; their records are read again by the next owner."""
        for partition in partitions:  # nothing to flush: the next owner reads the records again
            self.states.pop((partition.topic, partition.partition), None)
        with self._guarded(partitions):
            consumer.incremental_unassign(partitions)

    @contextmanager
    def _guarded(self, partitions: list[TopicPartition]) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            right = required_acls(self._settings, sorted({place.topic for place in partitions}))
            self._events.pending_error = self._events.pending_error or classify(self._settings, error, right)
        except Exception as error:
            self._events.pending_error = self._events.pending_error or error

    def _begin(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        start = []
        metrics.SINK_REBALANCES.inc()
        self.member = consumer.memberid() or self.member
        if partitions:
            ids = self._topic_ids(partition.topic for partition in partitions)
            for committed in consumer.committed(partitions, timeout=REQUEST_S):
                if committed.error is not None:
                    raise TransientKafkaError(f"committed: {committed.error}")
                state, low = self._state(consumer, committed, ids.get(committed.topic, ""))
                self.states[(committed.topic, committed.partition)] = state
                # From the record before, if Kafka has it: that it is still the stored one shows that no tail was lost.
                first = max(low, state.next_offset - 1)
                epoch = committed.leader_epoch if state.has_committed else None
                place = (committed.topic, committed.partition, first)
                start.append(TopicPartition(*place, "", epoch) if epoch is not None else TopicPartition(*place))
            self._events.brokers_down = False
        consumer.incremental_assign(start)
        consumer.pause(start)  # until the ledger has been read

    def _state(self, consumer: Any, committed: TopicPartition, topic_id: str) -> tuple[PartitionState, int]:
        """Return the state of a partition and Kafka's first offset."""
        name, partition = committed.topic, committed.partition
        low, _ = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=REQUEST_S, cached=False)
        state = PartitionState(table(Topic(name)), partition, topic_id, low, name in COMPACTED_TOPICS)
        resume_from(state, committed.offset, committed.metadata, accept_loss=self._accept_loss)
        return state, low
