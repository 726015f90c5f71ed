"""Dead letters: the original key and value, with headers that say where from and why. At least once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Producer

from drumline.infra.kafka.connect import DENIED, KafkaAccessDenied
from drumline.infra.runtime.version import drumline_version
from drumline.schemas.confluent import HEADER
from drumline.schemas.topics import dlq
from drumline.sinks.ranges.record import Entry, Verdict

#: What a letter says of who wrote it; a stream worker's says its app id.
BY = "sink"


class DeadLettersFailed(RuntimeError):
    """Not all dead letters were acknowledged. Nothing of the range may be committed; try again."""


def headers(entry: Entry, topic_id: str) -> list[tuple[str, str | bytes | None]]:
    """Headers of a dead letter; the record's own come after ours."""
    record = entry.record
    value = record.value or b""
    schema = str(HEADER.unpack_from(value)[1]) if len(value) >= HEADER.size and value[0] == 0 else ""
    code, text = entry.error
    return [
        ("drumline.origin.topic", record.topic),
        ("drumline.origin.topic_id", topic_id),
        ("drumline.origin.partition", str(record.partition)),
        ("drumline.origin.offset", str(record.offset)),
        ("drumline.origin.timestamp_ms", str(record.timestamp_ms)),
        ("drumline.error.code", code),
        ("drumline.error.text", text[:1_000]),
        ("drumline.error.by", BY),
        ("drumline.schema_id", schema),
        ("drumline.version", drumline_version()),
        *record.headers,
    ]


class DeadLetters:
    """`make`: an idempotent producer, now and after each failure: one may be beyond repair, and what it still holds
    comes again anyway."""

    def __init__(self, make: Callable[[], Producer], timeout_s: float = 30.0) -> None:
        self._make, self._producer, self._timeout_s = make, make(), timeout_s

    def send(self, entries: Iterable[Entry], topic_id: str) -> int:
        """Send those of `entries` that are dead and wait until all are acknowledged; how many.

        Raises DeadLettersFailed, KafkaAccessDenied."""
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
                if entry.verdict is Verdict.DEAD:
                    self._produce(entry, topic_id, acknowledged)
                    sent += 1
            left = self._producer.flush(self._timeout_s) if sent else 0
        except Exception as error:  # BufferError: the queue stays full; KafkaException: no such topic, no broker
            self._renew()
            raise DeadLettersFailed(str(error)) from None
        if forbidden:
            raise KafkaAccessDenied(
                f"Kafka takes no dead letters: Write on topic {', '.join(sorted(forbidden))} is missing"
            )
        if failed or left:
            self._renew()
            raise DeadLettersFailed(failed[0] if failed else f"{left} not acknowledged in {self._timeout_s:.0f} s")
        return sent

    def _renew(self) -> None:
        self._producer.purge()
        self._producer = self._make()

    def _produce(self, entry: Entry, topic_id: str, acknowledged: Callable[[Any, Any], None]) -> None:
        """Hand one letter over. The producer's queue holds 1 GB, less than large letters of one range may be: it is
        waited for."""
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
