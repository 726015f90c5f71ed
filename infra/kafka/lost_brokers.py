"""A Kafka client that has gone astray: it has no address left to ask, so it sits there for ever, and says nothing.

Who is told of no broker at all forgets all it knew and begins again from the bootstrap addresses; librdkafka 2.16 does
so or not, as its threads have it (design/kafka-clients.md). Only its statistics show it: they list no broker. A client
whose brokers are merely away lists them, or the bootstrap addresses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError

#: How often a client gives its statistics; ms.
EVERY_MS = 5_000
#: For how long one without an address is given a chance; s.
NO_BROKERS_S = 30.0


class BrokerWatch:
    """Called with each of a client's statistics (JSON, `ts` in us). `tell` gets a fatal error, once, when there was no
    address for NO_BROKERS_S."""

    def __init__(self, tell: Callable[[KafkaError], None]) -> None:
        self._tell = tell
        self._since: int | None = None
        self._told = False

    def __call__(self, text: str) -> None:
        said = json.loads(text)
        if any(broker["source"] in ("configured", "learned") for broker in said["brokers"].values()):
            self._since, self._told = None, False
            return
        self._since = said["ts"] if self._since is None else self._since
        if not self._told and said["ts"] - self._since >= NO_BROKERS_S * 1e6:
            self._told = True
            self._tell(
                KafkaError(KafkaError._ALL_BROKERS_DOWN, "Kafka's client knows no broker's address any more", True)
            )


def with_broker_watch(config: dict[str, Any]) -> dict[str, Any]:
    """`config` of a client whose `error_cb` gets to hear, as a fatal error, that it has gone astray. It has to be
    polled: statistics that nobody takes stay in memory."""
    return {**config, "statistics.interval.ms": EVERY_MS, "stats_cb": BrokerWatch(config["error_cb"])}


def has_no_brokers(error: KafkaError) -> bool:
    """Whether `error` says that, so that a new client is all that is needed."""
    return bool(error.fatal()) and error.code() == KafkaError._ALL_BROKERS_DOWN
