"""Read Kafka's topic ids: a recreated topic has another one."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.sinks.kafka.errors import REQUEST_S, classify


def topic_ids(admin: AdminClient, settings: Settings, topics: Iterable[str]) -> dict[str, str]:
    """Return the id of each topic that exists. Retry later: TransientKafkaError. Fatal: KafkaAccessDenied."""
    names = sorted(set(topics))
    if not names:
        return {}
    ids = {}
    try:
        answers = admin.describe_topics(TopicCollection(names), request_timeout=REQUEST_S)
        for name, answer in answers.items():
            try:
                ids[name] = str(answer.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
    except KafkaException as error:
        raise classify(settings, error, f"Describe on topic {', '.join(names)}") from None
    return ids
