"""Before a program starts: are its topics there, and may this user do all that the program will do?

Brokers say which operations they would allow. Asked once at the start, every missing ACL comes in one message, and not
one after the other when the first dead letter or the first result is written.
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
    """Topics that are not there; they are never created by accident."""


@dataclass(frozen=True, slots=True)
class ExistingTopic:
    """A topic that is there. `id`: Kafka's; another one of the same name has another."""

    id: str
    partitions: int

    @classmethod
    def of(cls, description: Any) -> ExistingTopic:
        return cls(str(description.topic_id), len(description.partitions))


def require_acls(
    settings: Settings, client_id: str, topics: Rights, groups: Rights | None = None, *, optional: Rights | None = None
) -> dict[str, ExistingTopic]:
    """All of `topics`, and those of `optional` that exist.

    Raises BrokerUnreachable, KafkaAccessDenied (which names every missing ACL), MissingTopics. Brokers that do not
    report authorized operations are taken to allow all.
    """
    contact = ConnectionProbe(settings)
    admin = AdminClient(contact.silence(client_config(settings, client_id)))
    contact.metadata(admin)
    wanted = {**topics, **(optional or {})}
    found, lacks = describe_topics(admin, settings, wanted)
    for name, operations in (groups or {}).items():
        lacks += missing_group_acls(admin, name, operations)
    if lacks:
        raise acl_error(settings, lacks)
    if missing := sorted(set(topics) - set(found)):
        raise MissingTopics(
            f"{settings.bootstrap} has no topic {', '.join(missing)}; create them with `drumline topics apply`"
        )
    return {name: ExistingTopic.of(answer) for name, answer in found.items()}


def describe_topics(admin: AdminClient, settings: Settings, topics: Rights) -> tuple[dict[str, Any], list[MissingAcl]]:
    """Description of each topic that exists, and what is not allowed. Whether a topic exists that may not be described
    is not told. Raises BrokerUnreachable, KafkaAccessDenied."""
    found: dict[str, Any] = {}
    lacks: list[MissingAcl] = []
    if not topics:
        return found, lacks
    asked = TopicCollection(sorted(topics))
    futures = admin.describe_topics(asked, include_authorized_operations=True, request_timeout=TIMEOUT_S)
    for name, future in futures.items():
        try:
            found[name] = future.result()
            lacks += [(operation, "topic", name) for operation in _not_in(topics[name], found[name])]
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                lacks += [(operation, "topic", name) for operation in topics[name]]
            elif code != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise to_error(settings, error) from None
    return found, lacks


def acl_error(settings: Settings, lacks: Iterable[MissingAcl]) -> KafkaAccessDenied:
    """One message for all of them."""
    return KafkaAccessDenied(
        f"Kafka at {settings.bootstrap}: {principal(settings)} lacks ACLs: {format_acls(lacks)}. "
        "ACLs per program: docs/guide/security.md"
    )


def format_acls(lacks: Iterable[MissingAcl]) -> str:
    """`Read, Write on topic a, b; Read on group c`: what is lacked alike comes together."""
    of_each: dict[tuple[str, str], list[str]] = {}
    for operation, kind, name in lacks:
        of_each.setdefault((kind, name), []).append("".join(part.capitalize() for part in operation.split("_")))
    alike: dict[tuple[str, str], list[str]] = {}
    for (kind, name), operations in of_each.items():
        alike.setdefault((", ".join(sorted(operations)), kind), []).append(name)
    return "; ".join(f"{said} on {kind} {', '.join(sorted(names))}" for (said, kind), names in alike.items())


def missing_group_acls(admin: AdminClient, name: str, operations: Collection[str]) -> list[MissingAcl]:
    """What is not allowed on a group. A coordinator that is not ready yet says nothing about rights."""
    [future] = admin.describe_consumer_groups(
        [name], include_authorized_operations=True, request_timeout=TIMEOUT_S
    ).values()
    try:
        lacked = _not_in(operations, future.result())
    except KafkaException as error:
        lacked = operations if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED else ()
    return [(operation, "group", name) for operation in lacked]


def _not_in(operations: Collection[str], answer: Any) -> Collection[str]:
    if answer.authorized_operations is None:
        return ()
    allowed = {operation.name for operation in answer.authorized_operations}
    return [operation for operation in operations if operation not in allowed]
