"""Detection of a Kafka client that has no broker address left and therefore never recovers.

A client whose broker reports no broker at all forgets all addresses and should restart from the bootstrap addresses;
librdkafka 2.16 sometimes does not. Only its statistics show it: they list no broker. A client whose brokers are merely
down still lists them, or the bootstrap addresses.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError

#: Interval of a client's statistics; ms.
EVERY_MS = 5_000
#: Time after which a client without an address counts as lost; s.
NO_BROKERS_S = 30.0


class BrokerWatch:
    """Statistics callback of one client: reports a fatal error when it has had no broker address for NO_BROKERS_S.

    Runs in the thread that polls the client. `report` gets the error once per outage.
    """

    def __init__(self, report: Callable[[KafkaError], None]) -> None:
        self._report = report
        self._since: int | None = None
        self._has_reported = False

    def __call__(self, text: str) -> None:
        """Take librdkafka's statistics, JSON; report once when it has had no broker for NO_BROKERS_S."""
        statistics = json.loads(text)
        if any(broker["source"] in ("configured", "learned") for broker in statistics["brokers"].values()):
            self._since, self._has_reported = None, False
            return
        self._since = statistics["ts"] if self._since is None else self._since
        if not self._has_reported and statistics["ts"] - self._since >= NO_BROKERS_S * 1e6:
            self._has_reported = True
            self._report(
                KafkaError(KafkaError._ALL_BROKERS_DOWN, "Kafka's client has no broker's address any more", True)
            )


def with_broker_watch(config: dict[str, Any]) -> dict[str, Any]:
    """Return `config` with a BrokerWatch that reports to its `error_cb`.

    The client must be polled: librdkafka keeps unserved statistics in memory.
    """
    return {**config, "statistics.interval.ms": EVERY_MS, "stats_cb": BrokerWatch(config["error_cb"])}


def has_no_brokers(error: KafkaError) -> bool:
    """Return whether `error` is a BrokerWatch's: a new client is the remedy."""
    return bool(error.fatal()) and error.code() == KafkaError._ALL_BROKERS_DOWN
