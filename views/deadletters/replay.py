"""Replay of dead letters to the topic they came from, with the original key and bytes, once.

The progress is kept as committed offsets of one Kafka group per reason, so that reasons can be replayed one by one.
Offsets are committed after the broker acknowledged the records. After a kill in between, the last CHUNK may be sent
again, which sinks and stream workers detect as known batches. Kafka keeps the offsets for `offsets.retention.minutes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import client_config, dead_letter_config
from drumline.infra.kafka.connect import TIMEOUT_S, silence_librdkafka
from drumline.infra.kafka.offsets import Offsets
from drumline.schemas.dead_letters import REPLAY_OF
from drumline.schemas.topics import dlq
from drumline.views.deadletters.listing import DeadLetter

#: Dead letters sent at a time, fewer where they are large.
CHUNK, CHUNK_BYTES = 200, 64 << 20
_GROUP = "drumline-dlq-replay-"


class ReplayFailed(RuntimeError):
    """The broker did not acknowledge all of a chunk; no record of that chunk counts as replayed. Retry later."""


class ReplayProgress:
    """Keeps how far each reason was replayed: (reason, partition of the dead-letter topic) -> offset.

    All calls block on Kafka.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._admin = AdminClient(silence_librdkafka(client_config(settings, "drumline-dlq")))

    def read(self, topic: str, reasons: Iterable[str], partitions: Iterable[int]) -> dict[tuple[str, int], int]:
        """Return the offset before which all were replayed. Raises KafkaException."""
        places = [f"{dlq(topic)}:{number}" for number in sorted(set(partitions))]
        done = {}
        with closing(Offsets(self._settings, TIMEOUT_S)) as offsets:
            for reason in sorted(set(reasons)):
                for place, (offset, _) in offsets.committed(_GROUP + reason, places).items():
                    done[reason, int(place.rpartition(":")[2])] = offset
        return done

    def write(self, topic: str, done: dict[tuple[str, int], int]) -> None:
        """Commit the offsets. Raises KafkaException, ReplayFailed."""
        for (reason, number), offset in done.items():
            places = ConsumerGroupTopicPartitions(_GROUP + reason, [TopicPartition(dlq(topic), number, offset)])
            for future in self._admin.alter_consumer_group_offsets([places], request_timeout=TIMEOUT_S).values():
                for place in future.result().topic_partitions:
                    if place.error is not None:
                        raise ReplayFailed(f"cannot commit the progress of the replay: {place.error}")


class DeadLetterReplay:
    """Sends dead letters, a chunk at a time; blocks on Kafka. Call `end` after the last.

    sent: number of acknowledged records.
    """

    def __init__(self, settings: Settings, topic: str, remember: Callable[[dict[tuple[str, int], int]], None]) -> None:
        self._producer = Producer(silence_librdkafka(dead_letter_config(settings, "drumline-dlq-replay")))
        self._topic, self._remember = topic, remember
        self._chunk: list[DeadLetter] = []
        self.sent = 0

    def add(self, dead_letter: DeadLetter) -> None:
        """Send one more. Raises ReplayFailed, KafkaException."""
        self._chunk.append(dead_letter)
        if len(self._chunk) >= CHUNK or sum(len(entry.value or b"") for entry in self._chunk) >= CHUNK_BYTES:
            self.end()

    def end(self) -> None:
        """Send what is left of the chunk and commit the progress. Raises ReplayFailed, KafkaException."""
        if not self._chunk:
            return
        failed = self._send(self._chunk)
        if failed:
            raise ReplayFailed(f"{self._topic}: {failed[0]}; {self.sent} were replayed before")
        self._remember({(entry.reason, entry.partition): entry.offset + 1 for entry in self._chunk})
        self.sent += len(self._chunk)
        self._chunk = []

    def _send(self, chunk: Sequence[DeadLetter]) -> list[str]:
        failed: list[str] = []

        def acknowledged(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(str(error))

        for entry in chunk:
            place = f"{dlq(self._topic)}:{entry.partition}:{entry.offset}"
            headers: Any = [*entry.headers, (REPLAY_OF, place)]
            self._producer.produce(
                self._topic, key=entry.key, value=entry.value, headers=headers, on_delivery=acknowledged
            )
        left = self._producer.flush(30.0)
        return failed or ([f"{left} were not acknowledged in 30 s"] if left else [])
