"""Collect the errors that Kafka's clients report outside of calls, until the sink polls."""

from __future__ import annotations

import time

import structlog
from confluent_kafka import KafkaError

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.connect import to_access_error
from drumline.infra.kafka.lost_brokers import has_no_brokers
from drumline.sinks.kafka.errors import fatal_error

log = structlog.get_logger()
#: How often the same connection error is logged; s.
LOG_INTERVAL_S = 30.0


class ClientEvents:
    """Receives the error callbacks of the sink's Kafka clients; they run inside `poll`.

    `brokers_down`: no broker answers. `pending_error`: the error that interrupts the sink, or ends it.
    """

    def __init__(self, settings: Settings) -> None:
        self.brokers_down = False
        self.pending_error: Exception | None = None
        self._settings, self._logged = settings, (0.0, "")

    def take(self) -> Exception | None:
        """Return the pending error, once."""
        pending_error, self.pending_error = self.pending_error, None
        return pending_error

    def of_consumer(self, error: KafkaError) -> None:
        """Handle an error of the consumer; librdkafka reports one at each connection attempt.

        A permanent error ends the sink, and so does an error after which this member does nothing more. All others are
        logged at most every LOG_INTERVAL_S.
        """
        if rejected := to_access_error(self._settings, error):
            self.pending_error = self.pending_error or rejected
        elif ended := fatal_error(error):
            self.pending_error = ended
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.brokers_down = True
        else:
            now, text = time.monotonic(), error.str()
            if text.split(" (after", 1)[0] != self._logged[1] or now - self._logged[0] > LOG_INTERVAL_S:
                self._logged = now, text.split(" (after", 1)[0]
                log.warning("kafka", error=text)

    def of_admin(self, error: KafkaError) -> None:
        """Handle an error of the admin client. All but a loss of every broker address show in its requests."""
        if has_no_brokers(error):
            self.pending_error = fatal_error(error)
