"""Partitions come and go: each that a sink gets begins where its committed offset and its intent say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry import metrics
from drumline.schemas.topics import TOPICS, Topic
from drumline.sinks.errors import KafkaTrouble
from drumline.sinks.kafka.client_events import Aside
from drumline.sinks.kafka.errors import REQUEST_S, rights, trouble_of
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.resume import go_on
from drumline.sinks.tables.tables import table


class Assignment:
    """`states`: the partitions held now. `member`: the member id under which the last ones came.

    `taken_up` and `given_up` are callbacks; confluent-kafka carries no exception out of one: it is kept in `aside`."""

    def __init__(
        self,
        settings: Settings,
        aside: Aside,
        topic_ids: Callable[[Iterable[str]], dict[str, str]],
        *,
        accept_loss: bool,
    ) -> None:
        self.states: dict[tuple[str, int], PartitionState] = {}
        self.member = ""
        self._settings, self._aside = settings, aside
        self._topic_ids, self._accept_loss = topic_ids, accept_loss
        self._compacted = {spec.topic.value for spec in TOPICS if "compact" in spec.cleanup}

    def taken_up(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        with self._guarded(partitions):
            self._begin(consumer, partitions)

    def given_up(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        for partition in partitions:  # nothing to flush: what was collected will be read again by whoever gets it
            self.states.pop((partition.topic, partition.partition), None)
        with self._guarded(partitions):
            consumer.incremental_unassign(partitions)

    @contextmanager
    def _guarded(self, partitions: list[TopicPartition]) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            right = rights(self._settings, sorted({place.topic for place in partitions}))
            self._aside.trouble = self._aside.trouble or trouble_of(self._settings, error, right)
        except Exception as error:
            self._aside.trouble = self._aside.trouble or error

    def _begin(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        start = []
        metrics.SINK_REBALANCES.inc()
        self.member = consumer.memberid() or self.member
        if partitions:
            ids = self._topic_ids(partition.topic for partition in partitions)
            for committed in consumer.committed(partitions, timeout=REQUEST_S):
                if committed.error is not None:
                    raise KafkaTrouble(f"committed: {committed.error}")
                state = self._state(consumer, committed, ids.get(committed.topic, ""))
                self.states[(committed.topic, committed.partition)] = state
                start.append(TopicPartition(committed.topic, committed.partition, state.next_offset))
            self._aside.away = False
        consumer.incremental_assign(start)
        consumer.pause(start)  # until the ledger has been asked

    def _state(self, consumer: Any, committed: TopicPartition, topic_id: str) -> PartitionState:
        name, partition = committed.topic, committed.partition
        low, _ = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=REQUEST_S, cached=False)
        state = PartitionState(table(Topic(name)), partition, topic_id, low, name in self._compacted)
        go_on(state, committed.offset, committed.metadata, accept_loss=self._accept_loss)
        return state
