"""Kafka target of a replay: counts what the broker acknowledged. One idempotent producer."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.signing import signer
from drumline.producers.replay.recording import TimedBatch
from drumline.schemas.codec import Codec

log = logging.getLogger("kafka")  # of libraries: equal lines are limited

#: Size of the client's queue; kB. Its default of 1 GB would hold most of a recording.
_QUEUE_KB = 65_536
#: Longest outage of Kafka before a batch is given up; s. A stream worker's producer waits as long (Faust's default).
_DELIVERY_TIMEOUT_S = 1_200.0


class NotDelivered(RuntimeError):
    """The broker rejected a batch, or did not acknowledge it in time. Acknowledged rows stay counted."""


class ProducerClient(Protocol):
    """The part of confluent_kafka.Producer that is used."""

    def produce(
        self, topic: str, value: bytes, key: bytes, on_delivery: Callable[[Any, Any], None], **more: Any
    ) -> None:
        """Queue a record. Raises BufferError where the queue is full."""

    def poll(self, timeout: float) -> int:
        """Call the callbacks of delivered records; return their number."""

    def flush(self, timeout: float) -> int:
        """Wait until all records are delivered; return the number of those that are not."""


class Publisher:
    """Publishes batches to Kafka and counts what is acknowledged, per topic.

    Used by one thread. `publish` blocks while the client's queue is full, `flush` for at most its timeout.

    Attributes:
        rows, batches: acknowledged.
        queued: rows given to the client, acknowledged or not.
    """

    def __init__(self, settings: Settings, codec: Codec, client_id: str, client: ProducerClient | None = None) -> None:
        self._codec = codec
        self._where = settings.bootstrap
        self._sign = signer(settings.kafka)
        self._client: ProducerClient = client or Producer(
            {
                **producer_config(settings, client_id),
                "queue.buffering.max.kbytes": _QUEUE_KB,
                "delivery.timeout.ms": round(_DELIVERY_TIMEOUT_S * 1000),
                "error_cb": _log_error,
                "log_level": 2,
            }
        )  # type: ignore[assignment]
        self.rows: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()
        self.queued: Counter[str] = Counter()
        self._problem = ""

    def publish(self, timed: TimedBatch, sent_ns: int) -> None:
        """Queue one batch, waiting while the client's queue is full. Raises NotDelivered once one failed."""
        timed.batch.envelope["sent_ns"] = sent_ns
        self.produce(str(timed.batch.topic), timed.key, self._codec.encode(timed.batch), timed.batch.rows)

    def produce(self, topic: str, name: str, value: bytes, rows: int) -> None:
        """Queue one record of so many rows, with a key, as `publish` does."""
        key = name.encode()

        def delivered(error: KafkaError | None, _message: Any) -> None:
            if error is None:
                self.rows[topic] += rows
                self.batches[topic] += 1
            else:
                self._problem = self._problem or f"{topic}: {error.str()}"

        while True:
            self._raise_if_failed()
            try:
                self._client.produce(
                    topic, value=value, key=key, on_delivery=delivered, **self._sign(topic, key, value)
                )
                break
            except BufferError:
                self._client.poll(0.1)
            except KafkaException as error:
                raise NotDelivered(f"{topic}: {error.args[0].str()}") from None
        self.queued[topic] += rows
        self._client.poll(0)

    def wait(self, seconds: float) -> None:
        """Process acknowledgements for a time."""
        self._client.poll(seconds)

    def flush(self, timeout_s: float = _DELIVERY_TIMEOUT_S + 10) -> None:
        """Wait until the broker has answered for every batch. Raises NotDelivered if one failed or has no answer."""
        deadline = time.monotonic() + timeout_s
        while (left := self._client.flush(1.0)) and time.monotonic() < deadline:  # signals are handled in between
            self._raise_if_failed()
        self._raise_if_failed()
        if left:
            raise NotDelivered(f"{self._where}: no answer for {left} batches within {timeout_s:g} s")

    def settle(self, timeout_s: float = 10.0) -> None:
        """After a failure, process the acknowledgements that still come."""
        self._client.flush(timeout_s)

    def _raise_if_failed(self) -> None:
        if self._problem:
            raise NotDelivered(self._problem)


def _log_error(error: KafkaError) -> None:
    log.warning(f"{error.name()}: %s", error.str())
