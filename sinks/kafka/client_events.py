"""What Kafka's clients say on the side, of their connections and of themselves, kept until the sink polls."""

from __future__ import annotations

import time

import structlog
from confluent_kafka import KafkaError

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.connect import to_access_error
from drumline.infra.kafka.lost_brokers import has_no_brokers
from drumline.sinks.kafka.errors import last_word

log = structlog.get_logger()
#: How often the same trouble with a connection is logged; s.
SAY_S = 30.0


class Aside:
    """`away`: no broker answers. `trouble`: what interrupts the sink, or ends it."""

    def __init__(self, settings: Settings) -> None:
        self.away = False
        self.trouble: Exception | None = None
        self._settings, self._said = settings, (0.0, "")

    def take(self) -> Exception | None:
        """The trouble, once."""
        trouble, self.trouble = self.trouble, None
        return trouble

    def of_consumer(self, error: KafkaError) -> None:
        """At each of librdkafka's tries to connect. A refusal ends the sink, and so does an error after which this
        member does nothing more; all else is logged once in a while."""
        if refused := to_access_error(self._settings, error):
            self.trouble = self.trouble or refused
        elif ended := last_word(error):
            self.trouble = ended
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.away = True
        else:
            now, text = time.monotonic(), error.str()
            if text.split(" (after", 1)[0] != self._said[1] or now - self._said[0] > SAY_S:
                self._said = now, text.split(" (after", 1)[0]
                log.warning("kafka", error=text)

    def of_admin(self, error: KafkaError) -> None:
        """All but one show in what is asked of it."""
        if has_no_brokers(error):
            self.trouble = last_word(error)
