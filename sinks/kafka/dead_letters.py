"""Produce the sink's dead letters: the original key and value, with headers that give origin and reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Producer

from drumline.infra.kafka.connect import DENIED, KafkaAccessDenied
from drumline.infra.runtime.version import drumline_version
from drumline.schemas.confluent import framed_schema_id
from drumline.schemas.dead_letters import Header, Origin, Rejection, write_headers
from drumline.schemas.topics import dlq
from drumline.sinks.ranges.record import Disposition, RangeEntry

#: The value of the header error.by; a stream worker's is its app id.
BY = "sink"


class DeadLettersFailed(RuntimeError):
    """Retry later: not all dead letters were acknowledged. Nothing of the range may be committed."""


def headers(entry: RangeEntry, topic_id: str) -> list[Header]:
    """Return the headers of a dead letter; the record's own come after drumline's."""
    record = entry.record
    schema_id = framed_schema_id(record.value)
    code, text = entry.error
    return write_headers(
        Origin(record.topic, record.partition, record.offset, topic_id, record.timestamp_ms),
        Rejection(code, text, BY, "" if schema_id is None else str(schema_id), drumline_version()),
        record.headers,
    )


class DeadLetterProducer:
    """Produces dead letters, at least once.

    Used by the sink's thread only. `make` creates an idempotent producer, at the start and after each failure: a failed
    producer may be beyond repair, and its unsent records are produced again anyway.
    """

    def __init__(self, make: Callable[[], Producer], timeout_s: float = 30.0) -> None:
        self._make, self._producer, self._timeout_s = make, make(), timeout_s

    def send(self, entries: Iterable[RangeEntry], topic_id: str) -> int:
        """Produce the rejected records among `entries`, wait until all are acknowledged, and return their number.

        Blocks for up to `timeout_s`. Retry later: DeadLettersFailed. Fatal: KafkaAccessDenied.
        """
        failed: list[str] = []
        forbidden: set[str] = set()

        def acknowledged(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(str(error))
                if error.code() in DENIED:
                    forbidden.add(message.topic())

        sent = 0
        try:
            for entry in entries:
                if entry.disposition is Disposition.DEAD_LETTER:
                    self._produce(entry, topic_id, acknowledged)
                    sent += 1
            left = self._producer.flush(self._timeout_s) if sent else 0
        except Exception as error:  # BufferError: the queue stays full; KafkaException: no such topic, no broker
            self._recreate_producer()
            raise DeadLettersFailed(str(error)) from None
        if forbidden:
            raise KafkaAccessDenied(
                f"Kafka takes no dead letters: Write on topic {', '.join(sorted(forbidden))} is missing"
            )
        if failed or left:
            self._recreate_producer()
            raise DeadLettersFailed(failed[0] if failed else f"{left} not acknowledged in {self._timeout_s:.0f} s")
        return sent

    def _recreate_producer(self) -> None:
        self._producer.purge()
        self._producer = self._make()

    def _produce(self, entry: RangeEntry, topic_id: str, acknowledged: Callable[[Any, Any], None]) -> None:
        """Queue one dead letter; wait while the queue is full.

        The queue holds 1 GB, which is less than the dead letters of one range may need.
        """
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                self._producer.produce(
                    dlq(entry.record.topic),
                    key=entry.record.key,
                    value=entry.record.value,
                    headers=headers(entry, topic_id),
                    on_delivery=acknowledged,
                )
                return
            except BufferError:
                if time.monotonic() > until:
                    raise
                self._producer.poll(0.1)
