"""Writing and reading of drumline.control.v1 for people."""

from __future__ import annotations

import getpass
from collections.abc import Iterable
from typing import Any

from confluent_kafka import KafkaException, Producer

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.acls import acl_error
from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.connect import BrokerUnreachable, ConnectionProbe, to_error
from drumline.infra.kafka.tail import read
from drumline.producers.control.request_log import ControlLog, name_of
from drumline.schemas.control import BadControl, Control, encode
from drumline.schemas.topics import Topic

#: Time for Kafka's acknowledgement; s.
ACKNOWLEDGED_S = 10.0
_RIGHT = f"Write on topic {Topic.CONTROL}"


def write(settings: Settings, records: Iterable[tuple[str, Control | None]]) -> None:
    """Write records, key and content; None clears a key. Blocks until Kafka has them.

    Raises BadControl, NoSuchTopic, BrokerUnreachable, KafkaAccessDenied.
    """
    values = [(key, None if control is None else encode(control)) for key, control in records]
    probe = ConnectionProbe(settings)
    config = {
        **producer_config(settings, "drumline-control"),
        "delivery.timeout.ms": round(ACKNOWLEDGED_S * 1e3),
        "reconnect.backoff.ms": 100,  # somebody waits: half of what other clients take costs 0.5 s here
        "linger.ms": 0,
    }
    producer = Producer(probe.silence(config))
    if probe.metadata(producer, str(Topic.CONTROL)).topics[str(Topic.CONTROL)].error is not None:
        _require_topic(settings)
    errors: list[Any] = []

    def acknowledged(error: Any, _message: Any) -> None:
        errors.extend([error] if error is not None else [])

    for key, value in values:
        producer.produce(str(Topic.CONTROL), key=key, value=value, on_delivery=acknowledged)
    left = producer.flush(ACKNOWLEDGED_S)
    if errors:
        raise to_error(settings, KafkaException(errors[0]), _RIGHT)
    if left:
        raise BrokerUnreachable(f"Kafka at {settings.bootstrap} did not acknowledge within {ACKNOWLEDGED_S:g} s")


def _require_topic(settings: Settings) -> None:
    """Raise the reason why the topic cannot be written. Raises NoSuchTopic, KafkaAccessDenied."""
    for _ in read(settings, str(Topic.CONTROL), "end", follow=False):
        break
    raise acl_error(settings, [("WRITE", "topic", str(Topic.CONTROL))])


def in_force(settings: Settings, now_ns: int = 0) -> list[Control]:
    """Return what is asked and has not ended, the newest first. Blocks. Raises as infra.kafka.tail.read.

    `now_ns`: by the clock of this machine; 0 = what has ended by its time alone, too.
    """
    newest: dict[str, Control | None] = {}
    log = ControlLog()
    for message in read(settings, str(Topic.CONTROL), "beginning", follow=False):
        place, at_ms = int(message.partition() or 0), int(message.timestamp()[1])
        try:
            control = log.read(place, message.key(), message.value(), at_ms)
        except BadControl:  # agents do not follow it either, and log it
            control = None
        newest[name_of(message.key())] = control
    open_ones = (control for control in newest.values() if control and not control.cleared)
    return sorted((c for c in open_ones if c.until_ns > now_ns), key=lambda control: control.requested_ns, reverse=True)


def user_name() -> str:
    """Return the user of this machine."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no entry for the user's number
        return ""
