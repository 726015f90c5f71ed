"""One idempotent producer for the node agent: it waits for Kafka as long as that takes, and never gives a batch up.

Kafka's answer to each message goes to the callback that was handed over with it, out of `poll`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.connect import principal, to_access_error
from drumline.infra.kafka.lost_brokers import with_broker_watch

log = structlog.get_logger()

#: What may wait in the client's memory; kB. The spool holds the rest.
QUEUE_KB = 8_192
#: Asking whether Kafka is there: how long for an answer, and how long until the next try; s.
ASK_S, AGAIN_S = 2.0, 2.0
#: How often a client that is beyond repair is replaced at most; s. With no Write on any topic the next is no better.
REPLACE_S = 10.0
#: Answers that no repetition will change. INVALID_RECORD is none: with a topic's time stamps taken from producers, a
#: clock that is ahead brings it to all that went in one request.
NEVER = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_MSG_SIZE})
Answer = Callable[[KafkaError | None], None]


def make_client(settings: Settings, said: Callable[[KafkaError], None]) -> Any:
    """A producer without a limit on how long a message may wait: an outage may last."""
    return Producer(with_broker_watch({
        **producer_config(settings, "drumline-agent"), "delivery.timeout.ms": 0, "queue.buffering.max.kbytes": QUEUE_KB,
        "allow.auto.create.topics": False, "reconnect.backoff.max.ms": 5_000, "error_cb": said, "log_level": 0,
    }))  # fmt: skip


class Sender:
    """`problem`: why nothing goes out, or "". `client`: makes what is used of confluent_kafka.Producer."""

    def __init__(
        self,
        settings: Settings,
        topics: Collection[str],
        client: Callable[[Settings, Callable[[KafkaError], None]], Any] = make_client,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._make, self._clock = settings, client, clock
        self._topics = frozenset(topics)
        self._client = client(settings, self._said)
        self._fatal = self._refused = ""
        self._replace_at = float("-inf")
        self._ask_at = float("-inf")
        self._known = False
        self.problem = "Kafka has not been asked yet"
        self.waiting = 0
        self._answered = clock()

    @property
    def age_s(self) -> float:
        """Since Kafka took the last message, or since the start if it took none."""
        return self._clock() - self._answered

    @property
    def _away(self) -> str:
        return f"no Kafka broker answers at {self._settings.bootstrap}"

    def ready(self) -> bool:
        """Whether Kafka has answered once and has the topics; asks it at most every AGAIN_S."""
        if not self._known and self._clock() >= self._ask_at:
            try:
                there = self._client.list_topics(timeout=ASK_S).topics
                missing = sorted(self._topics - set(there))
                self._set(self._without(missing) if missing else "")
                self._known = not missing
            except KafkaException:
                self._pump(0)  # what it has to say beside that
                self._set(self._refused or self._away)
            self._ask_at = self._clock() + AGAIN_S * (0.5 + random.random())  # a thousand agents, not all at once
        return self._known

    def send(self, topic: str, key: str, value: bytes, answer: Answer) -> bool:
        """Hand one message over; False while the client's queue is full."""
        try:
            self._client.produce(
                topic, value=value, key=key.encode(), on_delivery=lambda error, _: self._delivered(error, answer)
            )
        except BufferError:
            return False
        except KafkaException as error:  # refused without asking: too large, or the client is beyond repair
            answer(error.args[0])
            return True
        self.waiting += 1
        return True

    def poll(self, seconds: float) -> None:
        """Take answers; lets `seconds` pass if there are none."""
        self._pump(seconds)
        if self._fatal and self._clock() >= self._replace_at:
            log.warning("kafka client replaced", problem=self._fatal)
            self._fatal, self._replace_at = "", self._clock() + REPLACE_S
            self._client.purge()
            self._client.flush(ASK_S)  # every message is answered: purged
            self._client = self._make(self._settings, self._said)
            self._known = False

    def _pump(self, seconds: float) -> None:
        """Callbacks. A client beyond repair raises why, at once and each time."""
        try:
            self._client.poll(seconds)
        except KafkaException as error:
            self._said(error.args[0])
            time.sleep(seconds)

    def flush(self, seconds: float) -> int:
        """Wait for answers; returns how many are still missing."""
        return int(self._client.flush(seconds))

    def _delivered(self, error: KafkaError | None, answer: Answer) -> None:
        self.waiting -= 1
        if error is None:
            self._answered = self._clock()
            self._set("")
        elif error.code() not in NEVER:  # sent again, once Kafka was asked again
            self._known = False
            self._set(f"Kafka does not take messages: {error.str()}")
        answer(error)

    def _said(self, error: KafkaError) -> None:
        if error.fatal():
            denied = to_access_error(self._settings, error, f"Write on topic {', '.join(sorted(self._topics))}")
            self._fatal = str(denied or error.str())
            self._known = False
            self._set(self._fatal)
        elif refused := to_access_error(self._settings, error):
            self._refused = str(refused)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and not self._refused:
            self._known = False  # asked again, so that the answer shows even where nothing is to be sent
            self._set(self._away)

    def _without(self, missing: list[str]) -> str:
        """Kafka does not list topics that a user may not write."""
        user = self._settings.kafka.sasl_username
        may = f" that {principal(self._settings)} may write (docs/guide/security.md)" if user else ""
        return f"no topic {', '.join(missing)}{may}; `drumline topics apply` creates them"

    def _set(self, problem: str) -> None:
        self._refused = self._refused if problem else ""
        if problem != self.problem:
            self.problem = problem
            if problem:
                log.warning("kafka", problem=problem)
            else:
                log.info("kafka answers", where=self._settings.bootstrap)
