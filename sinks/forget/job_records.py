"""Kafka's side of a job that is forgotten: keys of compacted topics, records of the others, state of stream workers.

Kafka deletes records only from the beginning of a partition. So records go as far as those before them are of forgotten
jobs too, and are read by sinks and stream workers; the others stay until the retention of their topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import admin_config, producer_config
from drumline.infra.kafka.connect import BrokerUnreachable, ConnectionProbe, silence_librdkafka, to_error
from drumline.infra.kafka.forget_tick import forget_value
from drumline.infra.kafka.offsets import Offsets
from drumline.infra.kafka.tail import NoSuchTopic, read, without_empty
from drumline.schemas.dead_letters import read_headers
from drumline.schemas.topics import COMPACTED_TOPICS, JOINED_TOPICS, TOPICS, Topic, dlq
from drumline.sinks.audit.kafka_side import KafkaFacts, PartitionFacts
from drumline.sinks.forget.stored_rows import Origin

#: Time for Kafka's acknowledgements; s.
ACKNOWLEDGED_S = 30.0
POLL_S = 0.25
#: Topics with rows, and those of them from whose beginning records can be deleted.
STORED = tuple(spec.topic.value for spec in TOPICS if spec.table)
LOGS = tuple(topic for topic in STORED if topic not in COMPACTED_TOPICS)


class ForgettableRecords:
    """Reads and changes Kafka for one job. Every method blocks; close it after use.

    All raise BrokerUnreachable or KafkaUnreachable: to be retried.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        ConnectionProbe(settings).metadata(AdminClient(silence_librdkafka(admin_config(settings, "drumline-forget"))))
        self._offsets = Offsets(settings)

    def close(self) -> None:
        """Close the consumers that read offsets."""
        self._offsets.close()

    def ends(self) -> dict[str, int]:
        """Return the ends of all topics with rows, by topic:partition."""
        return self._offsets.ends(self._offsets.places(STORED))

    def wait_stored(self, ends: Mapping[str, int], group: str, timeout_s: float) -> list[str]:
        """Wait until a group of sinks has stored all records before `ends`; return the places where it has not."""
        until = time.monotonic() + timeout_s
        while (behind := self._offsets.behind(group, ends)) and time.monotonic() < until:
            time.sleep(POLL_S)
        return behind

    def delete_keys(self, keys: Iterable[tuple[int, str]]) -> None:
        """Write tombstones of processes: partition and key."""
        self._produce((str(Topic.PROCESS), partition, key, None) for partition, key in keys)

    def state_keys(self, job: str, job_of_key: Callable[[str], str]) -> int:
        """Return how many keys in the changelogs of the stream workers are of the job. Reads all of them.

        `job_of_key`: returns the job of a state key.
        """
        prefix, keys = f"{self._settings.stream.app_id}-", 0
        for topic in self._listed(lambda name: name.startswith(prefix) and name.endswith("-changelog")):
            alive: dict[bytes, bool] = {}
            for message in read(self._settings, topic, "beginning", follow=False):
                alive[message.key() or b""] = message.value() is not None
            names = (key.partition(b"|")[2].decode(errors="replace") for key, has_value in alive.items() if has_value)
            keys += sum(job_of_key(name) == job for name in names)
        return keys

    def forget_state(self, job: str, timeout_s: float) -> bool:
        """Let stream workers forget the job; return whether they have all done so in time, or none has ever run."""
        group, ticks = self._settings.stream.app_id, self._offsets.places([Topic.TICK])
        if not self._offsets.committed(group, ticks):
            return True
        numbers = [int(place.rpartition(":")[2]) for place in ticks]
        self._produce((str(Topic.TICK), number, None, forget_value(job)) for number in numbers)
        ends, until = self._offsets.ends(ticks), time.monotonic() + timeout_s
        while any(at < ends[place] for place, (at, _) in self._offsets.committed(group, ticks).items()):
            if time.monotonic() > until:
                return False
            time.sleep(POLL_S)
        return True

    def readable(self, settings: Iterable[Settings]) -> tuple[list[PartitionFacts], dict[str, int]]:
        """Return the partitions of the topics, and up to where every reader has read each, by topic:partition.

        `settings`: of each replica, whose sinks are readers too.
        """
        facts: list[PartitionFacts] = []
        read_to: dict[str, int] = {}
        for replica in settings:
            with closing(KafkaFacts(replica)) as kafka:
                facts = kafka.partitions(LOGS)
            for fact in facts:
                place = f"{fact.topic}:{fact.partition}"
                stored = fact.low if fact.pending else fact.committed
                read_to[place] = min(read_to.get(place, stored), stored)
        joined = [place for place in read_to if place.rpartition(":")[0] in JOINED_TOPICS]
        for place, (offset, _) in self._offsets.committed(self._settings.stream.app_id, joined).items():
            read_to[place] = min(read_to[place], offset)
        return facts, read_to

    def delete_before(self, offsets: Mapping[str, int]) -> None:
        """Delete all records of places, as topic:partition, before an offset."""
        places = [TopicPartition(p.rpartition(":")[0], int(p.rpartition(":")[2]), at) for p, at in offsets.items()]
        if not places:
            return
        admin = AdminClient(silence_librdkafka(admin_config(self._settings, "drumline-forget")))
        for place, future in admin.delete_records(places).items():
            try:
                future.result(ACKNOWLEDGED_S)
            except KafkaException as error:
                raise to_error(self._settings, error, f"Delete on topic {place.topic}") from None

    def with_dead_letters(self) -> list[str]:
        """Return the topics that have dead letters."""
        topic_of = {dlq(topic): topic for topic in STORED}
        return [topic_of[name] for name in without_empty(self._settings, list(topic_of))]

    def dead_letters(
        self, topic: str, are_forgotten: Callable[[str, list[Origin]], set[Origin]]
    ) -> dict[str, tuple[int, int, int]]:
        """Return place -> (first offset, end of those that are all of forgotten jobs, number of such behind it).

        Reads the dead letters of a topic. `are_forgotten`: as of ForgettableRows.
        """
        origins: dict[str, list[tuple[int, Origin | None]]] = {}
        try:
            for message in read(self._settings, dlq(topic), "beginning", follow=False):
                headers: Any = message.headers() or []
                origin = read_headers(headers).origin
                place = f"{dlq(topic)}:{message.partition()}"
                origins.setdefault(place, []).append((int(message.offset() or 0), origin))
        except NoSuchTopic:
            return {}
        known = [origin for of_place in origins.values() for _, origin in of_place if origin is not None]
        forgotten = are_forgotten(topic, known) if known else set()
        ends: dict[str, tuple[int, int, int]] = {}
        for place, of_place in origins.items():
            kept = [offset for offset, origin in of_place if origin not in forgotten]
            until = min(kept, default=of_place[-1][0] + 1)
            behind = sum(origin in forgotten and offset > until for offset, origin in of_place)
            if behind or until > of_place[0][0]:
                ends[place] = of_place[0][0], until, behind
        return ends

    def _listed(self, wanted: Callable[[str], bool]) -> list[str]:
        admin = AdminClient(silence_librdkafka(admin_config(self._settings, "drumline-forget")))
        return sorted(filter(wanted, ConnectionProbe(self._settings).metadata(admin).topics))

    def _produce(self, records: Iterable[tuple[str, int, str | None, bytes | None]]) -> None:
        probe, errors = ConnectionProbe(self._settings), list[Any]()
        producer = Producer(probe.silence(producer_config(self._settings, "drumline-forget")))

        def acknowledged(error: Any, message: Any) -> None:
            errors.extend([(error, message.topic())] if error is not None else [])

        for topic, partition, key, value in records:
            producer.produce(topic, key=key, value=value, partition=partition, on_delivery=acknowledged)
        left = producer.flush(ACKNOWLEDGED_S)
        if errors:
            raise to_error(self._settings, KafkaException(errors[0][0]), f"Write on topic {errors[0][1]}")
        if left:
            raise BrokerUnreachable(f"Kafka at {self._settings.bootstrap} did not acknowledge in {ACKNOWLEDGED_S:g} s")
