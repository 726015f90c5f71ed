"""Creation of the declared topics (schemas/topics.py), and comparison with those of the broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public names that its stubs do not export
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.acls import MissingAcl, acl_error, describe_topics
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import DENIED, TIMEOUT_S, ConnectionProbe, to_error
from drumline.infra.kafka.partition_counts import joined_differ, remedies
from drumline.schemas.topics import JOINED_TOPICS, TOPICS, dlq, dlq_config

#: Replicas that must have a record before it is acknowledged (acks=all). Kafka's default, 1, is one broker alone.
IN_SYNC = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class DeclaredTopic:
    """A topic as the settings and schemas/topics.py declare it.

    `any_partitions`: an existing topic keeps its number, whatever it is.
    """

    name: str
    partitions: int
    replication: int
    config: dict[str, str]
    any_partitions: bool = False

    @classmethod
    def of(cls, settings: Settings, name: str, partitions: int, config: Mapping[str, str]) -> DeclaredTopic:
        """Return a topic with the settings' replicas, of which so many must have a record that is acknowledged."""
        kafka = settings.kafka
        return cls(name, partitions, kafka.replication, {**config, IN_SYNC: str(kafka.in_sync)})


@dataclass(frozen=True, slots=True)
class ActualTopic:
    """A topic as the broker has it. `config` has effective values, including the broker's defaults."""

    partitions: int
    replication: int
    config: Mapping[str, str | None]


Action = Literal["create", "ok", "alter", "error"]
#: How the number of replicas is changed; Kafka's clients cannot.
_REASSIGN = "Kafka's tool kafka-reassign-partitions changes that (docs/guide/brokers.md)"


@dataclass(frozen=True, slots=True)
class Step:
    """Planned change of one topic.

    `drift`: configuration name -> (actual value, declared value). `remedy`: of the partitions of all topics together.
    """

    topic: str
    action: Action
    drift: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    problem: str = ""
    remedy: str = ""


def declared_topics(settings: Settings, partitions: int | None = None) -> list[DeclaredTopic]:
    """Return all topics and their dead-letter topics. `partitions`: of each topic that has no number of its own."""
    count, numbers = partitions or settings.kafka.partitions, settings.kafka.topic_partitions
    topics = []
    for spec in TOPICS:
        topics.append(DeclaredTopic.of(settings, str(spec.topic), numbers.get(spec.topic, count), spec.config))
        if spec.dead_letters:  # few records: one partition
            dead_letters = DeclaredTopic.of(settings, dlq(spec.topic), 1, dlq_config())
            topics.append(replace(dead_letters, any_partitions=True))
    return topics


def plan(topics: Iterable[DeclaredTopic], existing: Mapping[str, ActualTopic]) -> list[Step]:
    """Compare declared topics with the existing ones and return one step per topic.

    No step asks for more replicas in sync than a topic has: Kafka would acknowledge nothing. None asks for fewer than
    the topic's owner did, unless a setting states the number. No topic that stream workers read is created beside such
    topics with another number of partitions.
    """
    topics, steps = list(topics), []
    declared = {topic.name: topic.partitions for topic in topics if not topic.any_partitions}
    counts = {name: topic.partitions for name, topic in existing.items()}
    remedy = "; or ".join(way.text for way in remedies(declared, counts))
    for topic in topics:
        actual = existing.get(topic.name)
        if actual is None:
            if topic.name in JOINED_TOPICS and joined_differ(declared, counts):
                problem = "is not created: topics that stream workers join have other numbers of partitions"
                steps.append(Step(topic.name, "error", {}, problem, remedy))
            else:
                steps.append(Step(topic.name, "create"))
            continue
        drift = {k: (actual.config.get(k), v) for k, v in topic.config.items() if actual.config.get(k) != v}
        in_sync, owners = int(topic.config.get(IN_SYNC, 1)), int(actual.config.get(IN_SYNC) or 1)
        if in_sync > actual.replication or in_sync < owners <= actual.replication:  # a higher one is the owner's
            drift.pop(IN_SYNC, None)
        if actual.partitions != topic.partitions and not topic.any_partitions:
            problem = f"has {actual.partitions} partitions, wanted {topic.partitions}, and adding partitions moves keys"
            steps.append(Step(topic.name, "error", drift, problem, remedy))
            continue
        note = ""
        if actual.replication != topic.replication:
            note = f"has {actual.replication} replicas, wanted {topic.replication}; {_REASSIGN}"
        steps.append(Step(topic.name, "alter" if drift else "ok", drift, note))
    return steps


def checked(steps: Iterable[Step]) -> list[Step]:
    """Return the steps with an error for each topic that is not as declared, replicas included."""
    remedies = {"create": "does not exist; run `drumline topics apply`", "alter": "run `drumline topics apply`"}
    result = []
    for step in steps:
        problem = "; ".join(filter(None, (step.problem, remedies.get(step.action))))
        result.append(replace(step, action="error" if problem else step.action, problem=problem))
    return result


class TopicsAdmin:
    """Reads and changes topics of the broker. Calls block for up to `timeout_s` a request.

    They raise BrokerUnreachable, KafkaAccessDenied or KafkaException.
    """

    def __init__(self, settings: Settings, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._settings, self._probe = settings, ConnectionProbe(settings, timeout_s)
        self._admin = AdminClient(self._probe.silence(client_config(settings, "drumline-topics")))
        self._missing_acls: list[MissingAcl] = []

    def existing(self, names: Iterable[str]) -> dict[str, ActualTopic]:
        """Return those of the topics that exist.

        Raises:
            BrokerUnreachable: no broker answers.
            KafkaAccessDenied: an ACL is missing.
        """
        self._probe.metadata(self._admin)
        descriptions, missing = describe_topics(
            self._admin, self._settings, dict.fromkeys(names, ("DESCRIBE", "DESCRIBE_CONFIGS"))
        )
        if missing:
            raise acl_error(self._settings, missing)
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in descriptions]
        configs: dict[str, Any] = {}
        if resources:
            for resource, future in self._admin.describe_configs(resources, request_timeout=self.timeout_s).items():
                entries = self._result(future)
                configs[resource.name] = {name: entry.value for name, entry in entries.items()}
        return {
            name: ActualTopic(
                partitions=len(topic.partitions),
                replication=min((len(place.replicas) for place in topic.partitions), default=0),
                config=configs[name],
            )
            for name, topic in descriptions.items()
        }

    def _result(self, future: Any) -> Any:
        try:
            return future.result()
        except KafkaException as error:
            raise to_error(self._settings, error) from None

    def apply(self, topics: Iterable[DeclaredTopic], steps: Iterable[Step]) -> list[Step]:
        """Create topics and alter drifted configuration. Return the steps, failed ones as errors.

        Raises KafkaAccessDenied once, with all missing ACLs.
        """
        self._missing_acls = []
        by_name = {topic.name: topic for topic in topics}
        steps = list(steps)
        failed = {**self._create([by_name[s.topic] for s in steps if s.action == "create"]), **self._alter(steps)}
        if self._missing_acls:
            raise acl_error(self._settings, self._missing_acls)
        return [Step(s.topic, "error", s.drift, failed[s.topic]) if s.topic in failed else s for s in steps]

    def _note(self, error: KafkaError, operation: str, topic: str) -> str:
        if error.code() in DENIED:
            self._missing_acls.append((operation, "topic", topic))
        return error.str()

    def _create(self, topics: list[DeclaredTopic]) -> dict[str, str]:
        new = [NewTopic(t.name, t.partitions, t.replication, config=dict(t.config)) for t in topics]
        failed = {}
        if new:
            timeouts = {"operation_timeout": self.timeout_s, "request_timeout": self.timeout_s}
            for name, future in self._admin.create_topics(new, **timeouts).items():
                try:
                    future.result()
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another apply was faster
                        failed[name] = self._note(error.args[0], "CREATE", name)
            if not self._missing_acls:
                self._settle([topic.name for topic in topics if topic.name not in failed])
        return failed

    def _settle(self, names: list[str]) -> None:
        """Wait until the brokers' metadata shows the new topics with leaders, so that what starts next can use them."""
        deadline = time.monotonic() + self.timeout_s
        while time.monotonic() < deadline:
            listed = self._probe.metadata(self._admin).topics
            if all(n in listed and all(p.leader >= 0 for p in listed[n].partitions.values()) for n in names):
                return
            time.sleep(0.1)

    def _alter(self, steps: list[Step]) -> dict[str, str]:
        resources = []
        for step in steps:
            if step.drift and step.action == "alter":
                entries = [
                    ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                    for name, (_, value) in step.drift.items()
                ]
                resources.append(ConfigResource(ResourceType.TOPIC, step.topic, incremental_configs=entries))
        failed = {}
        if resources:
            altered = self._admin.incremental_alter_configs(resources, request_timeout=self.timeout_s)
            for resource, future in altered.items():
                try:
                    future.result()
                except KafkaException as error:
                    failed[resource.name] = self._note(error.args[0], "ALTER_CONFIGS", resource.name)
        return failed
