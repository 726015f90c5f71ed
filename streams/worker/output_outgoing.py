"""What a worker sends, through Faust's producer: results of its stages, and dead letters."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import structlog

from drumline.infra.telemetry import metrics
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadRecord
from drumline.schemas.topics import dlq
from drumline.streams.worker.output import Origin, headers
from drumline.streams.worker.output_keys import record_key
from drumline.streams.worker.telemetry import count_output

log = structlog.get_logger()


class NotTaken(RuntimeError):
    """The producer takes nothing more: Kafka has been away for too long, or refuses us."""


class Outgoing:
    """Hands over to the producer, which keeps it until the broker has it; what is returned is to be awaited for that.
    Raises NotTaken."""

    def __init__(self, app: Any, codec: Codec) -> None:
        self._app, self._codec = app, codec

    async def send(self, batch: Batch) -> Awaitable[object]:
        value = self._codec.encode(batch)
        arrived = await self._produce(batch.topic, record_key(batch), value)
        count_output(batch)
        return arrived

    async def dead_letter(self, message: Any, error: Exception) -> Awaitable[object]:
        """A Kafka message that cannot be worked off, and why."""
        metrics.STREAM_DEAD_LETTERS.labels(message.topic, type(error).__name__).inc()
        origin = Origin(message.topic, message.partition, message.offset)
        if isinstance(error, BadRecord):
            log.warning("dead letter", reason=str(error), partition=origin.partition, offset=origin.offset)
        why = headers(origin, error, self._app.conf.id)
        return await self._produce(dlq(message.topic), message.key, message.value, why)

    async def _produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Any = None
    ) -> Awaitable[object]:
        try:
            arrived: Awaitable[object] = await self._app.producer.send(topic, key, value, None, None, headers)
        except Exception as error:
            raise NotTaken(f"{topic}: {error!r}") from error
        return arrived
