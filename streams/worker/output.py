"""Produce the worker's output through Faust's producer: results of its stages, and dead letters."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import structlog

from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.logging import RateLimit
from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import check
from drumline.schemas.codec import Codec
from drumline.schemas.dead_letters import Header, Origin, Rejection, write_headers
from drumline.schemas.errors import BadRecord
from drumline.schemas.keys import record_key
from drumline.schemas.topics import dlq
from drumline.streams.worker.telemetry import count_output

log = structlog.get_logger()
#: The partition of a dead letter: its topic has one. The producer would hash the key in Python, 0.2 s for one of 1 MB.
DEAD_LETTERS = 0


class ProducerFailed(RuntimeError):
    """Fatal: the producer takes no more records; Kafka has been down for too long, or denies access."""


def headers(origin: Origin, error: BaseException, app_id: str, record: Iterable[Header] = ()) -> list[Header]:
    """Return the headers of a dead letter; `record`: those of the record.

    A BadRecord's message names topic and field. Of other errors only the type is written: their text may hold data.
    """
    text = str(error) if isinstance(error, BadRecord) else "unexpected error while processing; see the worker's log"
    return write_headers(origin, Rejection(type(error).__name__, text, app_id), record)


class OutputProducer:
    """Passes records to Faust's producer, which keeps them until the broker has them.

    Owned by `StreamWorker`; runs in its event loop. Every method returns an awaitable that is done when the broker has
    acknowledged the record. Fatal: ProducerFailed.
    """

    def __init__(self, app: Any, codec: Codec, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._codec = app, codec
        self._logged = RateLimit(clock)

    async def send(self, batch: Batch, epoch: Header) -> Awaitable[object]:
        """Produce a result batch. `epoch`: the header that fences it (schemas/epochs.py).

        Raises OutOfBounds for a result that its consumers would reject.
        """
        check(batch)
        value = self._codec.encode(batch)
        arrived = await self._produce(batch.topic, record_key(batch).encode(), value, [epoch])
        count_output(batch)
        return arrived

    async def send_dead_letter(
        self, message: Any, error: Exception, part: int = 0, value: bytes | None = None
    ) -> Awaitable[object]:
        """Produce the dead letter of a Kafka message that cannot be processed, or of a part of one and its value."""
        metrics.STREAM_DEAD_LETTERS.labels(message.topic, type(error).__name__).inc()
        origin = Origin(message.topic, message.partition, message.offset, part=part)
        if isinstance(error, BadRecord):
            self._log(origin, error)
        written = headers(origin, error, self._app.conf.id, message.headers or ())
        # aiokafka sends no record without key and value, which others may publish.
        key = b"" if message.key is None and message.value is None else message.key
        value = value if part else message.value
        return await self._produce(dlq(message.topic), key, value, written, DEAD_LETTERS)

    def _log(self, origin: Origin, error: BadRecord) -> None:
        """Log one dead letter of a topic and kind of error a minute: a flood cost as much to log as to decode."""
        more = self._logged.held((origin.topic, type(error).__name__))
        if more is not None:
            place = {"partition": origin.partition, "offset": origin.offset}
            log.warning("dead letter", reason=str(error), more_like_it_before=more, **place)

    async def _produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Any = None, partition: int | None = None
    ) -> Awaitable[object]:
        try:
            arrived: Awaitable[object] = await self._app.producer.send(topic, key, value, partition, None, headers)
        except Exception as error:
            raise ProducerFailed(f"{topic}: {error!r}") from error
        return arrived
