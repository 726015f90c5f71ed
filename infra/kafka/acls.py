"""Check of topics and ACLs before a program starts.

Brokers report which operations they would allow. The check at the start names every missing ACL in one message, instead
of one after the other when the first dead letter or the first result is written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import TIMEOUT_S, ConnectionProbe, KafkaAccessDenied, principal, to_error

#: topic or group -> the operations on it, by Kafka's names: READ, WRITE, CREATE, DESCRIBE, ...
Rights = Mapping[str, Collection[str]]
#: (operation, "topic" or "group", name)
MissingAcl = tuple[str, str, str]


class MissingTopics(RuntimeError):
    """Topics do not exist; programs never create them implicitly."""


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic of the broker. `id` is Kafka's: a recreated topic has another."""

    id: str
    partitions: int

    @classmethod
    def of(cls, description: Any) -> ExistingTopic:
        """Convert confluent_kafka's description of a topic."""
        return cls(str(description.topic_id), len(description.partitions))


def require_acls(
    settings: Settings,
    client_id: str,
    topics: Rights,
    groups: Rights | None = None,
    *,
    optional: Rights | None = None,
    is_patient: bool = False,
) -> dict[str, ExistingTopic]:
    """Return all of `topics`, and those of `optional` that exist, by name. Blocks for up to about 10 s a request.

    Brokers that do not report authorized operations are taken to allow all. `is_patient`: a program that waits for a
    broker, also where nothing listens.

    Raises:
        BrokerUnreachable: retry later.
        KafkaAccessDenied: fatal; names every missing ACL.
        MissingTopics: fatal.
    """
    probe = ConnectionProbe(settings, is_patient=is_patient)
    admin = AdminClient(probe.silence(client_config(settings, client_id)))
    probe.metadata(admin)
    wanted = {**topics, **(optional or {})}
    descriptions, missing_acls = describe_topics(admin, settings, wanted)
    for name, operations in (groups or {}).items():
        missing_acls += missing_group_acls(admin, name, operations)
    if missing_acls:
        raise acl_error(settings, missing_acls)
    if missing := sorted(set(topics) - set(descriptions)):
        raise MissingTopics(
            f"{settings.bootstrap} has no topic {', '.join(missing)}; create them with `drumline topics apply`"
        )
    return {name: ExistingTopic.of(answer) for name, answer in descriptions.items()}


def describe_topics(admin: AdminClient, settings: Settings, topics: Rights) -> tuple[dict[str, Any], list[MissingAcl]]:
    """Return the description of each topic that exists, and the missing ACLs.

    A topic that the client may not describe counts as missing ACLs, whether it exists or not.
    Raises BrokerUnreachable, KafkaAccessDenied.
    """
    descriptions: dict[str, Any] = {}
    missing: list[MissingAcl] = []
    if not topics:
        return descriptions, missing
    names = TopicCollection(sorted(topics))
    futures = admin.describe_topics(names, include_authorized_operations=True, request_timeout=TIMEOUT_S)
    for name, future in futures.items():
        try:
            descriptions[name] = future.result()
            missing += [(operation, "topic", name) for operation in _not_in(topics[name], descriptions[name])]
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                missing += [(operation, "topic", name) for operation in topics[name]]
            elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise to_error(settings, error) from None
    return descriptions, missing


def acl_error(settings: Settings, missing: Iterable[MissingAcl]) -> KafkaAccessDenied:
    """Return one error that names all missing ACLs."""
    return KafkaAccessDenied(
        f"Kafka at {settings.bootstrap}: {principal(settings)} lacks ACLs: {format_acls(missing)}. "
        "ACLs per program: docs/guide/security.md"
    )


def format_acls(missing: Iterable[MissingAcl]) -> str:
    """Return `Read, Write on topic a, b; Read on group c`: resources with equal operations are grouped."""
    operations_of: dict[tuple[str, str], list[str]] = {}
    for operation, kind, name in missing:
        operations_of.setdefault((kind, name), []).append("".join(part.capitalize() for part in operation.split("_")))
    names_of: dict[tuple[str, str], list[str]] = {}
    for (kind, name), operations in operations_of.items():
        names_of.setdefault((", ".join(sorted(operations)), kind), []).append(name)
    return "; ".join(
        f"{operations} on {kind} {', '.join(sorted(names))}" for (operations, kind), names in names_of.items()
    )


def missing_group_acls(admin: AdminClient, name: str, operations: Collection[str]) -> list[MissingAcl]:
    """Return the missing ACLs of a group; none while its coordinator is not ready."""
    [future] = admin.describe_consumer_groups(
        [name], include_authorized_operations=True, request_timeout=TIMEOUT_S
    ).values()
    try:
        missing = _not_in(operations, future.result())
    except KafkaException as error:
        missing = operations if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED else ()
    return [(operation, "group", name) for operation in missing]


def _not_in(operations: Collection[str], answer: Any) -> Collection[str]:
    if answer.authorized_operations is None:
        return ()
    allowed = {operation.name for operation in answer.authorized_operations}
    return [operation for operation in operations if operation not in allowed]
