"""Classify Kafka's errors for a sink: fatal, or retry later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.connect import KafkaAccessDenied, to_access_error
from drumline.infra.kafka.lost_brokers import has_no_brokers
from drumline.sinks.errors import Fenced, NoKnownBrokers, TransientKafkaError

#: How long a request to Kafka may take; s.
REQUEST_S = 15.0


def fatal_error(error: Any) -> Exception | None:
    """Return the exception to raise if the member does nothing more after this error, otherwise None.

    A message marks a fatal error by its code.
    """
    fatal = error.fatal() or error.code() == KafkaError._FATAL
    if error.code() == KafkaError.FENCED_INSTANCE_ID or (fatal and "fenced" in error.str().lower()):
        return Fenced(error.str())
    if has_no_brokers(error):
        return NoKnownBrokers(error.str())
    return KafkaException(error) if fatal else None


def required_acls(settings: Settings, topics: Iterable[str | None]) -> str:
    """Return the ACLs that a sink needs, as text for an error message."""
    names = ", ".join(filter(None, topics))
    return f"Read on {f'topic {names} and on ' if names else ''}group {settings.sink.group}"


def classify(settings: Settings, error: KafkaException, right: str) -> TransientKafkaError | KafkaAccessDenied:
    """Return the exception to raise for `error`.

    KafkaAccessDenied if no retry can succeed, otherwise TransientKafkaError.
    """
    return to_access_error(settings, error.args[0], right) or TransientKafkaError(str(error.args[0]))
