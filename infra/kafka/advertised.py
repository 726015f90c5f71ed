"""Addresses that brokers state for themselves (advertised.listeners): all but a client's first request go there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import client_config
from drumline.infra.runtime.listeners import connect_error

#: Time for the metadata of a broker that answers at the bootstrap address; s.
ANSWER_S, ATTEMPTS = 2.0, 3


def addresses(settings: Settings) -> list[tuple[str, int]]:
    """Return (host, port) of each bootstrap server that has that form."""
    matches = (re.fullmatch(r"\s*\[?([^\]]+?)\]?:(\d+)\s*", server) for server in settings.bootstrap.split(","))
    return [(match[1], int(match[2])) for match in matches if match]


def unreachable(settings: Settings, brokers: Iterable[Any]) -> str:
    """Return a sentence where no broker can be reached at the address that it states, else "".

    `brokers`: of the metadata. Blocks for a connect, unless they are at a bootstrap address.
    """
    stated = sorted({(str(broker.host), int(broker.port)) for broker in brokers})
    if not stated or not set(stated).isdisjoint(addresses(settings)):
        return ""
    if not (reason := connect_error("Kafka's brokers", stated)):
        return ""
    places = ", ".join(f"{host}:{port}" for host, port in stated[:3])
    return (
        f"Kafka at {settings.bootstrap} answers, and states that its brokers are at {places}, where this host cannot "
        f"reach them ({reason}): correct advertised.listeners of the brokers, or the network"
    )


def advertised_error(settings: Settings) -> str:
    """Return `unreachable` of the brokers' own metadata; "" where none answers at all."""
    # The client goes on to the addresses that are stated, and back to the bootstrap address only after a pause.
    config = {**client_config(settings, "drumline-probe"), "reconnect.backoff.ms": 50, "log_level": 0}
    for _ in range(ATTEMPTS):
        with suppress(KafkaException):
            return unreachable(settings, AdminClient(config).list_topics(timeout=ANSWER_S).brokers.values())
    return ""
