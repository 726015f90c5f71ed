"""Put dead letters back where they came from: the original key and bytes, once.

What was put back is remembered as committed offsets of a Kafka group per reason, so that one reason can be put back
and the others later. Offsets are committed after the broker has acknowledged the records: killed in between, the last
CHUNK may be sent again, which sinks and stream workers notice as batches they know. Kafka keeps such offsets for
`offsets.retention.minutes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.deadletters.listing import DeadLetter
from drumline.infra.kafka.config import client_config, dead_letter_config
from drumline.infra.kafka.connect import TIMEOUT_S, silence_librdkafka
from drumline.infra.kafka.offsets import Offsets
from drumline.schemas.dead_letters import REPLAY_OF
from drumline.schemas.topics import dlq

#: Letters sent at a time, fewer where they are large.
CHUNK, CHUNK_BYTES = 200, 64 << 20
_GROUP = "drumline-dlq-replay-"


class ReplayFailed(RuntimeError):
    """The broker did not take all of a chunk; nothing of that chunk counts as put back."""


class ReplayProgress:
    """(reason, partition of the dead-letter topic) -> the offset before which its letters were put back."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = AdminClient(silence_librdkafka(client_config(settings, "drumline-dlq")))

    def read(self, topic: str, reasons: Iterable[str], partitions: Iterable[int]) -> dict[tuple[str, int], int]:
        """Raises KafkaException."""
        places = [f"{dlq(topic)}:{number}" for number in sorted(set(partitions))]
        done = {}
        with closing(Offsets(self._settings, TIMEOUT_S)) as offsets:
            for reason in sorted(set(reasons)):
                for place, (offset, _) in offsets.committed(_GROUP + reason, places).items():
                    done[reason, int(place.rpartition(":")[2])] = offset
        return done

    def write(self, topic: str, done: dict[tuple[str, int], int]) -> None:
        """Raises KafkaException."""
        for (reason, number), offset in done.items():
            places = ConsumerGroupTopicPartitions(_GROUP + reason, [TopicPartition(dlq(topic), number, offset)])
            for future in self._admin.alter_consumer_group_offsets([places], request_timeout=TIMEOUT_S).values():
                for place in future.result().topic_partitions:
                    if place.error is not None:
                        raise ReplayFailed(f"cannot remember what was put back: {place.error}")


class DeadLetterReplay:
    """Sends letters, a chunk at a time. Call `end` after the last."""

    def __init__(self, settings: Settings, topic: str, remember: Callable[[dict[tuple[str, int], int]], None]) -> None:
        self._producer = Producer(silence_librdkafka(dead_letter_config(settings, "drumline-dlq-replay")))
        self._topic, self._remember = topic, remember
        self._chunk: list[DeadLetter] = []
        self.sent = 0

    def add(self, one: DeadLetter) -> None:
        """Raises ReplayFailed, KafkaException."""
        self._chunk.append(one)
        if len(self._chunk) >= CHUNK or sum(len(each.value or b"") for each in self._chunk) >= CHUNK_BYTES:
            self.end()

    def end(self) -> None:
        """Raises ReplayFailed, KafkaException."""
        if not self._chunk:
            return
        failed = self._send(self._chunk)
        if failed:
            raise ReplayFailed(f"{self._topic}: {failed[0]}; {self.sent} were put back before")
        self._remember({(one.reason, one.partition): one.offset + 1 for one in self._chunk})
        self.sent += len(self._chunk)
        self._chunk = []

    def _send(self, chunk: Sequence[DeadLetter]) -> list[str]:
        failed: list[str] = []

        def acknowledged(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(str(error))

        for one in chunk:
            place = f"{dlq(self._topic)}:{one.partition}:{one.offset}"
            headers: Any = [*one.headers, (REPLAY_OF, place)]
            self._producer.produce(self._topic, key=one.key, value=one.value, headers=headers, on_delivery=acknowledged)
        left = self._producer.flush(30.0)
        return failed or ([f"{left} were not acknowledged in 30 s"] if left else [])
