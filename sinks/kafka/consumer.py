"""The Kafka side of a sink: records come, and offsets are committed with intents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import admin_config
from drumline.infra.kafka.connect import silence_librdkafka, to_access_error
from drumline.infra.kafka.lost_brokers import with_broker_watch
from drumline.schemas.topics import Topic
from drumline.sinks.errors import Fenced, LostRecords, TopicReplaced
from drumline.sinks.kafka.assignment import Assignment
from drumline.sinks.kafka.client_events import Aside
from drumline.sinks.kafka.config import consumer_config
from drumline.sinks.kafka.end_offsets import Ends
from drumline.sinks.kafka.errors import last_word, rights, trouble_of
from drumline.sinks.kafka.fencing import unchallenged
from drumline.sinks.kafka.topic_ids import topic_ids
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.record import Record

log = structlog.get_logger()
Commit = tuple[PartitionState, int, str]


class SinkConsumer:
    """`states`: the partitions held now. `aside`: what Kafka's clients say on the side. Callbacks run inside `poll`, in
    the caller's thread; so no locks."""

    def __init__(self, settings: Settings, topics: Sequence[Topic], *, accept_loss: bool = False) -> None:
        self._settings, self._topics, self.accept_loss = settings, list(topics), accept_loss
        self.aside = Aside(settings)
        self._assignment = Assignment(settings, self.aside, self.topic_ids, accept_loss=accept_loss)
        self.states = self._assignment.states
        self._connect()

    def _connect(self) -> None:
        admin = silence_librdkafka(admin_config(self._settings, "drumline-sink-admin"))
        self._admin = AdminClient(with_broker_watch({**admin, "error_cb": self.aside.of_admin}))
        config = silence_librdkafka(consumer_config(self._settings, self._topics))
        self._consumer = Consumer(with_broker_watch({**config, "error_cb": self.aside.of_consumer}))
        self._ends = Ends(self._admin, self._consumer)
        self._assignment.member = ""

    def subscribe(self) -> None:
        self._consumer.subscribe(
            [topic.value for topic in self._topics],
            on_assign=self._assignment.taken_up,
            on_revoke=self._assignment.given_up,
            on_lost=self._assignment.given_up,
        )

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's id of each topic that exists. Raises KafkaTrouble, KafkaAccessDenied."""
        return topic_ids(self._admin, self._settings, topics)

    def poll(self, timeout_s: float) -> Record | None:
        """The next record of a partition held, or None. Raises LostRecords, TopicReplaced, Fenced, KafkaTrouble,
        Astray, KafkaAccessDenied."""
        self._admin.poll(0)
        message = self._consumer.poll(timeout_s)
        if trouble := self.aside.take():
            raise trouble
        if message is None:
            return None
        error = message.error()
        if error is not None:
            self._on_error(error, message)
            return None
        self.aside.away = False
        raw: Any = message
        return Record(
            raw.topic(),
            raw.partition(),
            raw.offset(),
            raw.key(),
            raw.value(),
            raw.timestamp()[1],
            list(raw.headers() or []),
        )

    def _on_error(self, error: Any, message: Any) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            state = self.states.get((message.topic(), message.partition()))
            if state is not None and state.intent is not None and state.compacted:
                state.next_offset = max(state.next_offset, message.offset())  # its last records were compacted away
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            state = self.states.get((message.topic(), message.partition()))
            if state is None:  # could not be taken up, so librdkafka looked for a place of its own; nothing is read
                log.info("not held", topic=message.topic(), partition=message.partition(), error=error.str())
                return
            if self.topic_ids([message.topic()]).get(message.topic()) != state.topic_id:
                raise TopicReplaced(message.topic())
            raise LostRecords(f"{message.topic()} partition {message.partition()}: {error.str()}")
        elif ended := last_word(error):
            raise ended
        elif code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            log.warning("topic does not exist; `drumline topics apply` creates it", topic=message.topic())
        elif refused := to_access_error(self._settings, error, rights(self._settings, [message.topic()])):
            raise refused
        else:
            log.warning("kafka", error=str(error))

    def commit(self, commits: Sequence[Commit]) -> None:
        """Commit (state, offset, metadata), for what is still held. Raises KafkaTrouble (KafkaAccessDenied where no
        retry mends it): then nothing may be relied on.

        Kafka fences a member by its generation, not by what it owns, so we leave out what we no longer hold.
        """
        offsets = [
            TopicPartition(state.table.topic.value, state.partition, offset, metadata)
            for state, offset, metadata in commits
            if self.holds(state)
        ]
        if not offsets:
            return
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException as error:
            if error.args[0].code() == KafkaError.FENCED_INSTANCE_ID:
                raise Fenced(str(error.args[0])) from None
            of = rights(self._settings, (place.topic for place in offsets))
            raise trouble_of(self._settings, error, of) from None
        for answer in answers:
            if answer.error is not None:
                raise trouble_of(self._settings, KafkaException(answer.error), rights(self._settings, [answer.topic]))

    def holds(self, state: PartitionState) -> bool:
        return self.states.get((state.table.topic.value, state.partition)) is state

    def pause(self) -> None:
        self._consumer.pause(self._partitions(self.states.values()))

    def resume(self) -> None:
        """Fetch again from every partition that is open and waits for nothing."""
        flowing = (state for state in self.states.values() if state.opened and state.parked is None)
        self._consumer.resume(self._partitions(flowing))

    def park(self, state: PartitionState, record: Record) -> None:
        """Nothing more of this partition until the record can be read."""
        state.parked = record
        self._consumer.pause(self._partitions([state]))

    def drop(self) -> None:
        """Forget everything collected and leave the group, to start over with `subscribe`."""
        self.states.clear()
        self._consumer.unsubscribe()

    def unchallenged(self) -> bool:
        """Once fenced: whether the group knows no other sink of this name. May take half a minute."""
        return unchallenged(self._admin, self._settings.sink.group, self._assignment.member)

    def renew(self) -> None:
        """As `drop`, with new clients: one that was fenced, or has gone astray, does nothing more."""
        self.states.clear()
        self._consumer.close()
        self.aside.take()
        self._connect()

    def close(self) -> None:
        self.states.clear()
        self._consumer.close()

    def look(self, now: float) -> None:
        """Ask the broker where the partitions end, for `lag`; does not wait. `now`: monotonic, s."""
        self._ends.ask(self.states.keys(), now)
        if self._ends.take():
            self.aside.away = False

    def lag(self) -> int:
        """Records known to be in Kafka and not yet taken in, over the partitions held: as of the last fetches, and the
        last answer to `look`."""
        return self._ends.lag({place: state.next_offset for place, state in self.states.items()})

    @staticmethod
    def _partitions(states: Iterable[PartitionState]) -> list[TopicPartition]:
        return [TopicPartition(state.table.topic.value, state.partition) for state in states]
