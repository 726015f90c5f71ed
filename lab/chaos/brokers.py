"""Knows the brokers of a private stack: which one leads the sinks' commits, and whether all replicas are in sync."""

from __future__ import annotations

import random

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import admin_config
from drumline.infra.kafka.connect import silence_librdkafka
from drumline.infra.localstack.kafka.broker import broker_name, numbers
from drumline.lab.chaos.targets import LEADER, TWO

OFFSETS_TOPIC = "__consumer_offsets"
ANSWER_S = 5.0


class Brokers:
    """Queries the cluster's metadata; each call blocks for up to ANSWER_S."""

    def __init__(self, settings: Settings) -> None:
        self._group, self._names = settings.sink.group, [broker_name(number) for number in numbers(settings)]
        self._admin = AdminClient(silence_librdkafka(admin_config(settings, "drumline-chaos")))

    def chosen(self, part: str, rng: random.Random) -> list[str]:
        """Return the brokers that `part` means now; other parts mean themselves."""
        if part == TWO:
            return rng.sample(self._names, 2)
        if part == LEADER:
            return [self._coordinator() or rng.choice(self._names)]
        return [part]

    def _coordinator(self) -> str:
        """Return the broker that has the sinks' commits; "" while none has."""
        try:
            partitions = self._admin.list_topics(OFFSETS_TOPIC, timeout=ANSWER_S).topics[OFFSETS_TOPIC].partitions
        except KafkaException:
            return ""
        leader = partitions[abs(java_hash(self._group)) % len(partitions)].leader if partitions else -1
        return broker_name(leader) if leader > 0 else ""

    def in_sync(self) -> bool:
        """Return whether all brokers run and every partition has all its replicas in sync."""
        try:
            seen = self._admin.list_topics(timeout=ANSWER_S)
        except KafkaException:
            return False
        partitions = [partition for topic in seen.topics.values() for partition in topic.partitions.values()]
        return len(seen.brokers) == len(self._names) and all(
            partition.leader >= 0 and len(partition.isrs) == len(partition.replicas) for partition in partitions
        )


def java_hash(text: str) -> int:
    """Return Java's hashCode of an ASCII text, by which Kafka places a group's commits."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
