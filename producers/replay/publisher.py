"""Batches to Kafka, with an account of what the broker acknowledged. One idempotent producer."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Producer

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import producer_config
from drumline.producers.replay.recording import Outgoing
from drumline.schemas.codec import Codec

log = logging.getLogger("kafka")  # of the libraries: equal lines are let through once in a while

#: What may wait in the client's memory; kB. Its default of 1 GB would hold most of a recording.
_QUEUE_KB = 65_536
#: How long Kafka may be away before a batch is given up; s. A stream worker's producer waits as long (Faust's default).
_PATIENCE_S = 1_200.0


class NotDelivered(RuntimeError):
    """The broker refused a batch, or did not take it in time. What was acknowledged stays counted."""


class Client(Protocol):
    """What is used of confluent_kafka.Producer."""

    def produce(self, topic: str, value: bytes, key: bytes, on_delivery: Callable[[Any, Any], None]) -> None: ...
    def poll(self, timeout: float) -> int: ...
    def flush(self, timeout: float) -> int: ...


class Publisher:
    """`rows`, `batches`: acknowledged, per topic. `handed_over`: rows given to the client, acknowledged or not."""

    def __init__(self, settings: Settings, codec: Codec, client_id: str, client: Client | None = None) -> None:
        self._codec = codec
        self._where = settings.bootstrap
        self._client: Client = client or Producer(
            {
                **producer_config(settings, client_id),
                "queue.buffering.max.kbytes": _QUEUE_KB,
                "delivery.timeout.ms": round(_PATIENCE_S * 1000),
                "error_cb": _say,
                "log_level": 2,
            }
        )  # type: ignore[assignment]
        self.rows: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()
        self.handed_over: Counter[str] = Counter()
        self._problem = ""

    def publish(self, outgoing: Outgoing, sent_ns: int) -> None:
        """Hand one batch over; waits while the client's queue is full. Raises NotDelivered once one was refused."""
        batch = outgoing.batch
        batch.envelope["sent_ns"] = sent_ns
        topic, rows = str(batch.topic), batch.rows
        value = self._codec.encode(batch)

        def delivered(error: KafkaError | None, _message: Any) -> None:
            if error is None:
                self.rows[topic] += rows
                self.batches[topic] += 1
            else:
                self._problem = self._problem or f"{topic}: {error.str()}"

        while True:
            self._raise_if_refused()
            try:
                self._client.produce(topic, value=value, key=outgoing.key.encode(), on_delivery=delivered)
                break
            except BufferError:
                self._client.poll(0.1)
            except KafkaException as error:
                raise NotDelivered(f"{topic}: {error.args[0].str()}") from None
        self.handed_over[topic] += rows
        self._client.poll(0)

    def wait(self, seconds: float) -> None:
        """Let time pass and take acknowledgements."""
        self._client.poll(seconds)

    def flush(self, timeout_s: float = _PATIENCE_S + 10) -> None:
        """Wait until the broker has answered for every batch. Raises NotDelivered if one got none or a no."""
        deadline = time.monotonic() + timeout_s
        while (left := self._client.flush(1.0)) and time.monotonic() < deadline:  # in between a signal gets through
            self._raise_if_refused()
        self._raise_if_refused()
        if left:
            raise NotDelivered(f"{self._where}: no answer for {left} batches within {timeout_s:g} s")

    def settle(self, timeout_s: float = 10.0) -> None:
        """After a failure: take what acknowledgements still come."""
        self._client.flush(timeout_s)

    def _raise_if_refused(self) -> None:
        if self._problem:
            raise NotDelivered(self._problem)


def _say(error: KafkaError) -> None:
    log.warning(f"{error.name()}: %s", error.str())
