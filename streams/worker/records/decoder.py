"""Decode Kafka values to batches; while the schema registry is down, records of new schemas wait."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import structlog

from drumline.infra.runtime.retry import backoff_s
from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import Health
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec, OpenRecord, Received
from drumline.schemas.errors import BadRecord, RegistryRejected, RegistryUnavailable
from drumline.schemas.record_table import RecordTable

log = structlog.get_logger()
Result = TypeVar("Result")


class RecordDecoder:
    """Decodes records and retries requests to the registry.

    Used in the worker's event loop; requests run in a thread, so that heartbeats to Kafka continue. `leaving()`: True
    once no record may wait, since the worker ends or partitions move.
    """

    def __init__(
        self,
        codec: Codec,
        health: Health,
        leaving: Callable[[], bool],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._codec, self._health, self._leaving, self._sleep = codec, health, leaving, sleep

    async def open(self, topic: str, received: Received) -> OpenRecord:
        """Return a record with its kind. Errors: see `decode`."""
        at_once = self._codec.decodes_at_once(received.value)
        return await self._retried(topic, at_once, partial(self._codec.open, topic, received))

    async def read(self, topic: str, records: Sequence[OpenRecord]) -> RecordTable:
        """Return all parts of records of one unit, or of one record, as a table. Errors: see `decode`."""
        at_once = self._codec.reads_at_once(records[0])  # what needs the registry is read by itself
        return await self._retried(topic, at_once, partial(self._codec.read, topic, records))

    async def decode(self, topic: str, value: bytes | None, of: OpenRecord) -> Batch:
        """Return a part of a record, or the batch that it is; waits while the registry is down.

        Known schemas need no registry. Fatal for the record: BadRecord. Fatal: RegistryRejected. Raises
        RegistryUnavailable when leaving.
        """
        at_once = self._codec.decodes_at_once(value)
        return await self._retried(topic, at_once, partial(self._codec.decode_part, topic, value, of))

    async def _retried(self, topic: str, at_once: bool, decode: Callable[[], Result]) -> Result:
        """Return what `decode` does; repeat it while the registry is down. `at_once`: it needs no registry."""
        if at_once:
            return decode()
        for attempt in itertools.count(1):
            try:
                # In a thread: heartbeats to Kafka go on while the registry takes its time.
                result = await asyncio.to_thread(decode)
            except RegistryUnavailable as error:
                if self._leaving() or isinstance(error, RegistryRejected):
                    raise
                metrics.STREAM_RETRIES.labels("registry").inc()
                self._health.set_reason("registry", "the schema registry does not answer; records of new schemas wait")
                wait_s = backoff_s(attempt, random.random())
                log.warning("retry scheduled", topic=topic, attempt=attempt, wait_s=round(wait_s, 1), error=str(error))
                await self._sleep(wait_s)
            except BadRecord:
                self._health.set_reason("registry", "")
                raise
            else:
                self._health.set_reason("registry", "")
                return result
        raise AssertionError("not reached")
