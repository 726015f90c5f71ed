"""Produce the sink's dead letters: the original key and value, with headers that give origin and reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer

from drumline.infra.kafka.connect import DENIED, KafkaAccessDenied
from drumline.infra.runtime.version import drumline_version
from drumline.schemas.bounds.limits import MAX_KEY_BYTES
from drumline.schemas.confluent import framed_schema_id
from drumline.schemas.dead_letters import OMITTED, Header, Origin, Rejection, write_headers
from drumline.schemas.tenants import is_signed
from drumline.schemas.topics import dlq
from drumline.sinks.ranges.disposition import Disposition, RangeEntry

log = structlog.get_logger()
#: Errors of a record that its topic never takes: the limit is for the compressed size, as this producer compresses.
TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
#: The code of a record whose rows ClickHouse rejects.
REJECTED = "ClickHouseRejected"
#: The value of the header error.by; a stream worker's is its app id.
BY = "sink"


class DeadLetterSender(Protocol):
    """Sends the dead letters of a range; see DeadLetterProducer."""

    def send(self, entries: Iterable[RangeEntry], topic_id: str) -> int:
        """Return how many were sent. Retry later: DeadLettersFailed. Fatal: KafkaAccessDenied."""


class RejectedRows:
    """Sends, in the sink of a replica, those that ClickHouse rejects: the primary may have taken their rows.

    What is wrong with the record itself, the primary's sink finds too, and sends.
    """

    def __init__(self, sender: DeadLetterSender) -> None:
        self._sender = sender

    def send(self, entries: Iterable[RangeEntry], topic_id: str) -> int:
        """Return how many were sent. Retry later: DeadLettersFailed. Fatal: KafkaAccessDenied."""
        return self._sender.send([entry for entry in entries if entry.error[0] == REJECTED], topic_id)


class DeadLettersFailed(RuntimeError):
    """Retry later: not all dead letters were acknowledged. Nothing of the range may be committed."""


def is_whole(entry: RangeEntry) -> bool:
    """Return whether the dead letter has the value of the whole record, and so is one for all of its parts.

    ClickHouse rejects a record, and a part that was signed as a part of one is accepted by nobody alone.
    """
    return not entry.record.part or entry.error[0] == REJECTED or is_signed(entry.record.headers)


def headers(entry: RangeEntry, topic_id: str, *, whole: bool = True) -> list[Header]:
    """Return the headers of a dead letter; the record's own come after drumline's, where it is sent `whole`."""
    record = entry.record
    schema_id = framed_schema_id(record.value)
    code, text = entry.error
    part = 0 if is_whole(entry) else record.part
    written = write_headers(
        Origin(record.topic, record.partition, record.offset, topic_id, record.timestamp_ms, part),
        Rejection(code, text, BY, "" if schema_id is None else str(schema_id), drumline_version()),
        record.headers if whole else (),
    )
    return written if whole else [*written, (OMITTED, b"value and headers, which are too large for the topic")]


class DeadLetterProducer:
    """Produces dead letters, at least once.

    Used by the sink's thread only. `make` creates an idempotent producer, at the start and after each failure: a failed
    producer may be beyond repair, and its unsent records are produced again anyway.
    """

    def __init__(self, make: Callable[[], Producer], timeout_s: float = 30.0) -> None:
        self._make, self._producer, self._timeout_s = make, make(), timeout_s
        self._too_large: set[tuple[str, int, int]] = set()

    def send(self, entries: Iterable[RangeEntry], topic_id: str) -> int:
        """Produce the rejected records among `entries`, wait until all are acknowledged, and return their number.

        Blocks for up to `timeout_s`. Retry later: DeadLettersFailed, also once for a dead letter that is too large for
        its topic; it is then sent without value and headers. Fatal: KafkaAccessDenied.
        """
        failed: list[str] = []
        forbidden: set[str] = set()

        def acknowledged(entry: RangeEntry, error: Any, message: Any) -> None:
            if error is not None:
                failed.append(str(error))
                if error.code() in TOO_LARGE:
                    self._cut(entry)
                if error.code() in DENIED:
                    forbidden.add(message.topic())

        sent = 0
        whole: set[int] = set()  # offsets of records that are sent once for all parts
        try:
            for entry in entries:
                if entry.disposition is Disposition.DEAD_LETTER:
                    if is_whole(entry):
                        if entry.record.offset in whole:
                            continue
                        whole.add(entry.record.offset)
                    self._produce(entry, topic_id, partial(acknowledged, entry))
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
        if sent:
            self._too_large.clear()
        return sent

    def _cut(self, entry: RangeEntry) -> None:
        """Have the dead letter sent without value and headers from now on."""
        record = entry.record
        self._too_large.add(record.place)
        log.error("a dead letter is too large for its topic; it is sent without value and headers",
                  topic=record.topic, partition=record.partition, offset=record.offset, bytes=entry.size)  # fmt: skip

    def _recreate_producer(self) -> None:
        self._producer.purge()
        self._producer = self._make()

    def _produce(self, entry: RangeEntry, topic_id: str, acknowledged: Callable[[Any, Any], None]) -> None:
        """Queue one dead letter; wait while the queue is full.

        The queue holds 1 GB, which is less than the dead letters of one range may need.
        """
        until = time.monotonic() + self._timeout_s
        record, whole = entry.record, entry.record.place not in self._too_large
        while True:
            try:
                self._producer.produce(
                    dlq(record.topic),
                    key=record.key if whole or len(record.key or b"") <= MAX_KEY_BYTES else None,
                    value=record.value if whole else None,
                    headers=headers(entry, topic_id, whole=whole),
                    on_delivery=acknowledged,
                )
                return
            except BufferError:
                if time.monotonic() > until:
                    raise
                self._producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].code() in TOO_LARGE:
                    self._cut(entry)
                raise
