"""Kafka producer of the node agent: idempotent, waits for Kafka without limit, never gives a batch up.

Kafka's answer to each message goes to the callback that was sent with it, called from `poll`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.advertised import unreachable
from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.connect import principal, to_access_error
from drumline.infra.kafka.lost_brokers import with_broker_watch
from drumline.infra.kafka.signing import signer
from drumline.schemas.dead_letters import Header

log = structlog.get_logger()

#: Size of the client's queue; kB. The spool holds the rest.
QUEUE_KB = 8_192
#: Timeout and period of probing Kafka; s.
PROBE_TIMEOUT_S, PROBE_PERIOD_S = 2.0, 2.0
#: Shortest time between two replacements of a client; s. Without Write on any topic the next one fails too.
REPLACE_S = 10.0
#: Errors that no retry changes. INVALID_RECORD is none: where a topic takes its time stamps from producers, a
#: clock that is ahead causes it for all messages of one request.
PERMANENT_ERRORS = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError.INVALID_MSG_SIZE})
Answer = Callable[[KafkaError | None], None]


def make_client(settings: Settings, on_error: Callable[[KafkaError], None]) -> Any:
    """Return a producer without a limit on the age of a message: an outage may last."""
    return Producer(with_broker_watch({
        **producer_config(settings, "drumline-agent"), "delivery.timeout.ms": 0, "queue.buffering.max.kbytes": QUEUE_KB,
        "allow.auto.create.topics": False, "reconnect.backoff.max.ms": 5_000, "error_cb": on_error, "log_level": 0,
    }))  # fmt: skip


class KafkaSender:
    """Sends messages and replaces a client that is beyond repair.

    The agent owns it; all calls come from the agent's thread, and so do the answers.

    Attributes:
        problem: reason why nothing is sent, or "".
        waiting: messages without an answer.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Collection[str],
        client: Callable[[Settings, Callable[[KafkaError], None]], Any] = make_client,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._make, self._clock = settings, client, clock
        self._topics = frozenset(topics)
        self._password = settings.kafka.current_password()
        self._client = client(settings, self._on_error)
        self._sign = signer(settings.kafka)
        self._fatal = self._denied = ""
        self._replace_at = float("-inf")
        self._probe_at = float("-inf")
        self._ready = False
        self.problem = "Kafka was not probed yet"
        self.waiting = 0
        self._answered = clock()

    @property
    def age_s(self) -> float:
        """Return the seconds since Kafka took a message, or since the start if it took none."""
        return self._clock() - self._answered

    @property
    def _no_broker(self) -> str:
        return f"no Kafka broker answers at {self._settings.bootstrap}"

    def ready(self) -> bool:
        """Return whether Kafka has answered and has the topics; probes it at most every PROBE_PERIOD_S."""
        if not self._ready and self._clock() >= self._probe_at:
            try:
                answer = self._client.list_topics(timeout=PROBE_TIMEOUT_S)
                missing = sorted(self._topics - set(answer.topics))
                problem = unreachable(self._settings, answer.brokers.values())
                self._set(problem or (self._missing_topics(missing) if missing else ""))
                self._ready = not self.problem
            except KafkaException:
                self._pump(0)  # error callbacks may give the reason
                self._set(self._denied or self._no_broker)
            self._probe_at = self._clock() + PROBE_PERIOD_S * (
                0.5 + random.random()
            )  # a thousand agents, not all at once
        return self._ready

    def send(self, topic: str, key: str, value: bytes, answer: Answer, headers: tuple[Header, ...] = ()) -> bool:
        """Queue one message; return False while the client's queue is full."""
        more = self._sign(topic, key.encode(), value)
        if headers:
            more["headers"] = [*more.get("headers", ()), *headers]
        try:
            self._client.produce(
                topic,
                value=value,
                key=key.encode(),
                on_delivery=lambda error, _: self._delivered(error, answer),
                **more,
            )
        except BufferError:
            return False
        except KafkaException as error:  # rejected by the client: too large, or beyond repair
            answer(error.args[0])
            return True
        self.waiting += 1
        return True

    def poll(self, seconds: float) -> None:
        """Process answers, waiting at most `seconds` for one."""
        self._pump(seconds)
        if self._fatal and self._clock() >= self._replace_at:
            log.warning("kafka client replaced", problem=self._fatal)
            self._fatal, self._replace_at = "", self._clock() + REPLACE_S
            self._client.purge()
            self._client.flush(PROBE_TIMEOUT_S)  # every message is answered: purged
            self._password = self._settings.kafka.current_password()
            self._client = self._make(self._settings, self._on_error)
            self._ready = False

    def _pump(self, seconds: float) -> None:
        """Run callbacks; a client beyond repair raises the reason, at once and each time."""
        try:
            self._client.poll(seconds)
        except KafkaException as error:
            self._on_error(error.args[0])
            time.sleep(seconds)

    def flush(self, seconds: float) -> int:
        """Wait for answers; return how many are still missing."""
        return int(self._client.flush(seconds))

    def _delivered(self, error: KafkaError | None, answer: Answer) -> None:
        self.waiting -= 1
        if error is None:
            self._answered = self._clock()
            self._set("")
        elif error.code() not in PERMANENT_ERRORS:  # sent again after the next probe
            self._ready = False
            self._set(f"Kafka rejects messages: {error.str()}")
        answer(error)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            denied = to_access_error(self._settings, error, f"Write on topic {', '.join(sorted(self._topics))}")
            self._fatal = str(denied or error.str())
            self._ready = False
            self._set(self._fatal)
        elif denied := to_access_error(self._settings, error):
            self._denied = str(denied)
            self._renew_password()
        elif error.code() == KafkaError._ALL_BROKERS_DOWN and not self._denied:
            self._ready = False  # probed again, so that recovery shows without messages to send
            self._set(self._no_broker)

    def _renew_password(self) -> None:
        """Let the client use the password that is in its file by now."""
        if (password := self._settings.kafka.current_password()) != self._password:
            self._password = password
            self._client.set_sasl_credentials(self._settings.kafka.sasl_username, password)
            log.info("kafka: the password has changed and is used from now on")

    def _missing_topics(self, missing: list[str]) -> str:
        """Return the reason for missing topics; Kafka does not list topics that a user may not write."""
        user = self._settings.kafka.sasl_username
        may = f" that {principal(self._settings)} may write (docs/guide/security.md)" if user else ""
        return f"no topic {', '.join(missing)}{may}; `drumline topics apply` creates them"

    def _set(self, problem: str) -> None:
        self._denied = self._denied if problem else ""
        if problem != self.problem:
            self.problem = problem
            if problem:
                log.warning("kafka", problem=problem)
            else:
                log.info("kafka answers", where=self._settings.bootstrap)
