"""The Kafka side of a sink: partitions come and go, offsets are committed with intents, a fenced member is out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from drumline.infra import metrics
from drumline.infra.kafka import admin_config
from drumline.infra.kafka_astray import astray, watched
from drumline.infra.kafka_contact import KafkaRefused, quiet, refusal
from drumline.infra.settings import Settings
from drumline.schemas.topics import TOPICS, Topic
from drumline.sinks.consumer_config import consumer_config
from drumline.sinks.ends import Ends
from drumline.sinks.entry import Record
from drumline.sinks.kafka_errors import Fenced, KafkaTrouble, LostRecords, TopicReplaced, last_word
from drumline.sinks.membership import unchallenged
from drumline.sinks.partition import PartitionState
from drumline.sinks.start import go_on
from drumline.sinks.tables import table

log = structlog.get_logger()
REQUEST_S = 15.0
#: How often the same trouble with a connection is logged; s.
SAY_S = 30.0
Commit = tuple[PartitionState, int, str]


class SinkConsumer:
    """`states`: the partitions held now. `away`: no broker answers. Callbacks run inside `poll`, in the
    caller's thread; so no locks."""

    def __init__(self, settings: Settings, topics: Sequence[Topic], *, accept_loss: bool = False) -> None:
        self.states: dict[tuple[str, int], PartitionState] = {}
        self.away = False
        self._trouble: Exception | None = None
        self._topics, self.accept_loss = list(topics), accept_loss
        self._compacted = {spec.topic.value for spec in TOPICS if "compact" in spec.cleanup}
        self._settings, self._said = settings, (0.0, "")
        self._connect()

    def _connect(self) -> None:
        admin = quiet(admin_config(self._settings, "drumline-sink-admin"))
        self._admin = AdminClient(watched({**admin, "error_cb": self._on_admin_error}))
        config = quiet(consumer_config(self._settings, self._topics))
        self._consumer = Consumer(watched({**config, "error_cb": self._on_client_error}))
        self._ends = Ends(self._admin, self._consumer)
        self._member = ""

    def subscribe(self) -> None:
        self._consumer.subscribe(
            [topic.value for topic in self._topics],
            on_assign=self._guarded(self._assigned),
            on_revoke=self._guarded(self._revoked),
            on_lost=self._guarded(self._revoked),
        )

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Kafka's id of each topic that exists. Raises KafkaTrouble, KafkaRefused."""
        names = sorted(set(topics))
        if not names:
            return {}
        found = {}
        try:
            answers = self._admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_S)
            for name, answer in answers.items():
                try:
                    found[name] = str(answer.result().topic_id)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
        except KafkaException as error:
            raise self._trouble_of(error, f"Describe on topic {', '.join(names)}") from None
        return found

    def poll(self, timeout_s: float) -> Record | None:
        """The next record of a partition held, or None. Raises LostRecords, TopicReplaced, Fenced, KafkaTrouble,
        Astray, KafkaRefused."""
        self._admin.poll(0)
        message = self._consumer.poll(timeout_s)
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        if message is None:
            return None
        error = message.error()
        if error is not None:
            self._on_error(error, message)
            return None
        self.away = False
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
        elif refused := refusal(self._settings, error, self._rights([message.topic()])):
            raise refused
        else:
            log.warning("kafka", error=str(error))

    def _on_client_error(self, error: KafkaError) -> None:
        """What librdkafka says of its connections, at each of its tries: a refusal ends the sink, and so does an error
        after which this member does nothing more; all else is logged once in a while."""
        if refused := refusal(self._settings, error):
            self._trouble = self._trouble or refused
        elif ended := last_word(error):
            self._trouble = ended
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.away = True
        else:
            now, text = time.monotonic(), error.str()
            if text.split(" (after", 1)[0] != self._said[1] or now - self._said[0] > SAY_S:
                self._said = now, text.split(" (after", 1)[0]
                log.warning("kafka", error=text)

    def _on_admin_error(self, error: KafkaError) -> None:
        """All but one show in what is asked of it."""
        if astray(error):
            self._trouble = last_word(error)

    def _rights(self, topics: Iterable[str | None]) -> str:
        names = ", ".join(filter(None, topics))
        return f"Read on {f'topic {names} and on ' if names else ''}group {self._settings.sink.group}"

    def _trouble_of(self, error: KafkaException, right: str) -> KafkaTrouble | KafkaRefused:
        return refusal(self._settings, error.args[0], right) or KafkaTrouble(str(error.args[0]))

    def commit(self, commits: Sequence[Commit]) -> None:
        """Commit (state, offset, metadata), for what is still held. Raises KafkaTrouble (KafkaRefused where no retry
        mends it): then nothing may be relied on.

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
            raise self._trouble_of(error, self._rights(place.topic for place in offsets)) from None
        for answer in answers:
            if answer.error is not None:
                raise self._trouble_of(KafkaException(answer.error), self._rights([answer.topic]))

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
        return unchallenged(self._admin, self._settings.sink.group, self._member)

    def renew(self) -> None:
        """As `drop`, with new clients: one that was fenced, or has gone astray, does nothing more."""
        self.states.clear()
        self._consumer.close()
        self._trouble = None
        self._connect()

    def close(self) -> None:
        self.states.clear()
        self._consumer.close()

    def look(self, now: float) -> None:
        """Ask the broker where the partitions end, for `lag`; does not wait. `now`: monotonic, s."""
        self._ends.ask(self.states.keys(), now)
        if self._ends.take():
            self.away = False

    def lag(self) -> int:
        """Records known to be in Kafka and not yet taken in, over the partitions held: as of the last fetches, and the
        last answer to `look`."""
        return self._ends.lag({place: state.next_offset for place, state in self.states.items()})

    @staticmethod
    def _partitions(states: Iterable[PartitionState]) -> list[TopicPartition]:
        return [TopicPartition(state.table.topic.value, state.partition) for state in states]

    def _guarded(self, taken_up: Callable[[Any, list[TopicPartition]], None]) -> Callable[..., None]:
        """A callback whose exception is kept for `poll` to raise: confluent-kafka carries none out of a callback."""

        def callback(consumer: Any, partitions: list[TopicPartition]) -> None:
            try:
                taken_up(consumer, partitions)
            except Exception as error:
                right = self._rights(sorted({place.topic for place in partitions}))
                self._trouble = self._trouble_of(error, right) if isinstance(error, KafkaException) else error

        return callback

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        for partition in partitions:  # nothing to flush: what was collected will be read again by whoever gets it
            self.states.pop((partition.topic, partition.partition), None)
        consumer.incremental_unassign(partitions)

    def _assigned(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        start = []
        metrics.SINK_REBALANCES.inc()
        self._member = consumer.memberid() or self._member
        if partitions:
            ids = self.topic_ids(partition.topic for partition in partitions)
            for committed in consumer.committed(partitions, timeout=REQUEST_S):
                if committed.error is not None:
                    raise KafkaTrouble(f"committed: {committed.error}")
                state = self._state(consumer, committed, ids.get(committed.topic, ""))
                self.states[(committed.topic, committed.partition)] = state
                start.append(TopicPartition(committed.topic, committed.partition, state.next_offset))
            self.away = False
        consumer.incremental_assign(start)
        consumer.pause(start)  # until the ledger has been asked

    def _state(self, consumer: Any, committed: TopicPartition, topic_id: str) -> PartitionState:
        name, partition = committed.topic, committed.partition
        low, _ = consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=REQUEST_S, cached=False)
        state = PartitionState(table(Topic(name)), partition, topic_id, low, name in self._compacted)
        go_on(state, committed.offset, committed.metadata, accept_loss=self.accept_loss)
        return state
