"""What Kafka's errors mean to a sink: which of them end it, and which it waits out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.connect import KafkaAccessDenied, to_access_error
from drumline.infra.kafka.lost_brokers import has_no_brokers
from drumline.sinks.errors import Astray, Fenced, KafkaTrouble

#: How long a question to Kafka may take; s.
REQUEST_S = 15.0


def last_word(error: Any) -> Exception | None:
    """What to raise if the member does nothing more after this error. A message tells of a fatal error by its code."""
    fatal = error.fatal() or error.code() == KafkaError._FATAL
    if error.code() == KafkaError.FENCED_INSTANCE_ID or (fatal and "fenced" in error.str().lower()):
        return Fenced(error.str())
    if has_no_brokers(error):
        return Astray(error.str())
    return KafkaException(error) if fatal else None


def rights(settings: Settings, topics: Iterable[str | None]) -> str:
    """What a sink has to be allowed, for a refusal to name."""
    names = ", ".join(filter(None, topics))
    return f"Read on {f'topic {names} and on ' if names else ''}group {settings.sink.group}"


def trouble_of(settings: Settings, error: KafkaException, right: str) -> KafkaTrouble | KafkaAccessDenied:
    """What to raise for `error`."""
    return to_access_error(settings, error.args[0], right) or KafkaTrouble(str(error.args[0]))
