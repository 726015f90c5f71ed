"""Read records from Kafka and commit offsets with intents."""

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
from drumline.sinks.errors import Fenced, TopicReplaced, TransientKafkaError, UnreadableBatch
from drumline.sinks.kafka.assignment import Assignment
from drumline.sinks.kafka.client_events import ClientEvents
from drumline.sinks.kafka.config import consumer_config
from drumline.sinks.kafka.coverage import Coverage
from drumline.sinks.kafka.end_offsets import EndOffsets
from drumline.sinks.kafka.errors import classify, fatal_error, required_acls
from drumline.sinks.kafka.fencing import is_sole_member
from drumline.sinks.kafka.log_check import LogCheck
from drumline.sinks.kafka.record_times import reader
from drumline.sinks.kafka.topic_ids import topic_ids
from drumline.sinks.ranges.disposition import Record
from drumline.sinks.ranges.intent import write_done
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.stored_tail import kafka_topic_id

log = structlog.get_logger()
#: State, offset, metadata, and the leader epoch of the record before the offset (or of the one at it); -1 = unknown.
Commit = tuple[PartitionState, int, str, int]


class SinkConsumer:
    """Wraps the sink's consumer and admin client.

    Owned by `Sink`, which closes it; used by its thread only. Callbacks run inside `poll`, in the same thread, so there
    are no locks. `states`: the partitions held now. `events`: the errors that clients report outside of calls. `logs`:
    compares Kafka's logs with what is stored. `coverage`: compares Kafka's topics with what the group reads.
    """

    def __init__(self, settings: Settings, topics: Sequence[Topic], *, accept_loss: bool = False) -> None:
        self._settings, self._topics, self.accept_loss = settings, list(topics), accept_loss
        self.events = ClientEvents(settings)
        self._assignment = Assignment(settings, self.events, self.topic_ids, accept_loss=accept_loss)
        self.states = self._assignment.states
        self._connect()

    def _connect(self) -> None:
        admin = silence_librdkafka(admin_config(self._settings, "drumline-sink-admin"))
        self._admin = AdminClient(with_broker_watch({**admin, "error_cb": self.events.of_admin}))
        config = silence_librdkafka(consumer_config(self._settings, self._topics))
        self._name = str(config.get("group.instance.id", ""))
        self._consumer = Consumer(with_broker_watch({**config, "error_cb": self.events.of_consumer}))
        self._ends = EndOffsets(self._admin, self._consumer)
        self.logs = LogCheck(self._consumer, accept_loss=self.accept_loss)
        self.coverage = Coverage(self._admin, self._settings.sink.group, self._topics)
        self._assignment.member = ""

    def subscribe(self) -> None:
        """Join the group."""
        self._consumer.subscribe(
            [topic.value for topic in self._topics],
            on_assign=self._assignment.on_assign,
            on_revoke=self._assignment.on_revoke,
            on_lost=self._assignment.on_revoke,
        )

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return Kafka's id of each topic that exists. Retry later: TransientKafkaError. Fatal: KafkaAccessDenied."""
        return topic_ids(self._admin, self._settings, topics)

    def poll(self, timeout_s: float) -> Record | None:
        """Return the next record of a held partition, or None after `timeout_s`.

        Retry later: TransientKafkaError. Fatal: LostRecords, KafkaAccessDenied. Start over: TopicReplaced, Fenced,
        NoKnownBrokers; TailLost, once the loss is accepted. Find its end: UnreadableBatch.
        """
        self._admin.poll(0)
        while True:
            message = self._consumer.poll(timeout_s)
            if pending_error := self.events.take():
                raise pending_error
            if message is None:
                return None
            error = message.error()
            if error is None:
                break
            self._on_error(error, message)
            timeout_s = 0.0  # the end of a partition, behind which there are often records of others
        self.events.brokers_down = False
        raw: Any = message
        epoch = raw.leader_epoch()
        record = Record(
            raw.topic(),
            raw.partition(),
            raw.offset(),
            raw.key(),
            raw.value(),
            raw.timestamp()[1],
            list(raw.headers() or []),
            -1 if epoch is None else epoch,
        )
        state = self.states.get((record.topic, record.partition))
        if state is not None:
            self.logs.check_record(state, record)
        return record

    def _on_error(self, error: Any, message: Any) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            state = self.states.get((message.topic(), message.partition()))
            if state is not None:
                self.logs.check_end(state, message.offset())
                state.read_to = message.offset()
            if state is not None and state.intent is not None and state.compacted:
                state.next_offset = max(state.next_offset, message.offset())  # its last records were compacted away
        elif code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            state = self.states.get((message.topic(), message.partition()))
            if state is None:  # its assignment failed, so librdkafka chose an offset; nothing is read
                log.info("not held", topic=message.topic(), partition=message.partition(), error=error.str())
                return
            if self.topic_ids([message.topic()]).get(message.topic()) != kafka_topic_id(state.topic_id):
                raise TopicReplaced(message.topic())
            raise self.logs.out_of_range(state, error.str())
        elif code == KafkaError._BAD_COMPRESSION:
            raise UnreadableBatch(message.topic(), message.partition(), message.offset())
        elif fatal := fatal_error(error):
            raise fatal
        elif code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
            log.warning("topic does not exist; `drumline topics apply` creates it", topic=message.topic())
        elif rejected := to_access_error(self._settings, error, required_acls(self._settings, [message.topic()])):
            raise rejected
        else:
            log.warning("kafka", error=str(error))

    def reader(self) -> Consumer:
        """Return a consumer for `record_times`; the caller closes it."""
        return reader(self._settings, "drumline-sink-reader")

    def continue_with(self, state: PartitionState, topic_id: str, first: int) -> None:
        """Read the partition from `first` on, where its log `topic_id` begins, and discard what was collected.

        Retry later: TransientKafkaError.
        """
        place = state.table.topic.value, state.partition
        self.commit([(state, first, write_done(topic_id), -1)])
        self.states[place] = PartitionState(
            state.table, state.partition, topic_id, first, state.compacted, opened=True, has_committed=True
        )
        try:
            self._consumer.seek(TopicPartition(*place, first))
        except KafkaException as error:
            raise TransientKafkaError(str(error.args[0])) from None

    def commit(self, commits: Sequence[Commit]) -> None:
        """Commit the offsets of the partitions that are still held; blocks for the answer.

        Kafka fences a member by its generation, not by the partitions that it owns, so revoked partitions are left out.
        Retry later: TransientKafkaError; then no commit may be relied on. Fatal: KafkaAccessDenied. Fenced: re-create
        the client.
        """
        offsets = [
            TopicPartition(state.table.topic.value, state.partition, offset, metadata, epoch)
            for state, offset, metadata, epoch in commits
            if self.holds(state)
        ]
        if not offsets:
            return
        if not self._consumer.memberid():  # Kafka accepts a commit of any client while the group has no members
            raise TransientKafkaError(f"no member of group {self._settings.sink.group} any more: nothing is committed")
        try:
            answers = self._consumer.commit(offsets=offsets, asynchronous=False) or []
        except KafkaException as error:
            if error.args[0].code() == KafkaError.FENCED_INSTANCE_ID:
                raise Fenced(str(error.args[0])) from None
            of = required_acls(self._settings, (place.topic for place in offsets))
            raise classify(self._settings, error, of) from None
        for answer in answers:
            if answer.error is not None:
                raise classify(
                    self._settings, KafkaException(answer.error), required_acls(self._settings, [answer.topic])
                )

    def unread(self, now: float) -> str:
        """Return why the sink must subscribe again, or ""; see `Coverage.check`. `now`: monotonic, s."""
        return self.coverage.check({place: kafka_topic_id(s.topic_id) for place, s in self.states.items()}, now)

    def holds(self, state: PartitionState) -> bool:
        """Return True if the state's partition was not revoked since it was assigned."""
        return self.states.get((state.table.topic.value, state.partition)) is state

    def pause(self) -> None:
        """Stop fetching from all partitions."""
        self._consumer.pause(self._partitions(self.states.values()))

    def resume(self) -> None:
        """Fetch again from every partition that waits for nothing."""
        self._consumer.resume(self._partitions(state for state in self.states.values() if state.flows))

    def pause_for_schema(self, state: PartitionState, record: Record) -> None:
        """Keep the record and stop fetching its partition until it can be decoded."""
        state.parked = record
        self.pause_partition(state)

    def seek(self, state: PartitionState, offset: int) -> None:
        """Continue to read a held partition at `offset`. Retry later: TransientKafkaError."""
        place = TopicPartition(state.table.topic.value, state.partition, offset)
        try:
            self._consumer.seek(place)
        except KafkaException as error:
            raise TransientKafkaError(f"{place.topic} partition {place.partition}: {error.args[0]}") from None

    def pause_partition(self, state: PartitionState) -> None:
        """Stop fetching from one partition."""
        self._consumer.pause(self._partitions([state]))

    def leave_group(self) -> None:
        """Discard everything collected and leave the group; `subscribe` starts over."""
        self.states.clear()
        self._consumer.unsubscribe()

    def is_sole_member(self) -> bool:
        """Return True if, after fencing, the group has no other sink of this name. Blocks for up to half a minute."""
        return is_sole_member(self._admin, self._settings.sink.group, self._name, self._assignment.member)

    def recreate_client(self) -> None:
        """Discard everything collected and replace the clients.

        A client that was fenced, or has no known brokers, never recovers.
        """
        self.states.clear()
        self._consumer.close()
        self.events.take()
        self._connect()

    def close(self) -> None:
        """Leave the group and close the consumer."""
        self.states.clear()
        self._consumer.close()

    def refresh_end_offsets(self, now: float) -> None:
        """Request the partitions' ends from the broker, for `lag`; does not block. `now`: monotonic, s."""
        self._ends.request(self.states.keys(), now)
        if self._ends.take():
            self.events.brokers_down = False

    def lags(self) -> dict[tuple[str, int], int]:
        """Return the number of records known to be in Kafka and not yet taken in, of each held partition.

        Known from the last fetches and the last answer to `refresh_end_offsets`.
        """
        return self._ends.lags({place: max(s.next_offset, s.read_to) for place, s in self.states.items()})

    def lag(self) -> int:
        """Return the sum of `lags`."""
        return sum(self.lags().values())

    @staticmethod
    def _partitions(states: Iterable[PartitionState]) -> list[TopicPartition]:
        return [TopicPartition(state.table.topic.value, state.partition) for state in states]
