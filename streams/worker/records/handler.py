"""Process records: decode them, apply them to the stages that read their topic, bury what is bad."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import structlog

from drumline.schemas.batch import Batch
from drumline.schemas.batch_table import BatchTable
from drumline.schemas.bounds.merged_check import is_inside
from drumline.schemas.codec import Codec, JoinedRecord, Parts, Received
from drumline.schemas.dead_letters import is_counted
from drumline.schemas.errors import BadRecord, RegistryUnavailable
from drumline.schemas.parts.merged import Ints
from drumline.schemas.parts.table import MergedParts
from drumline.schemas.tenants import is_signed
from drumline.schemas.topics import DERIVED_TOPICS, KEPT_TOPICS, RAW_TOPICS
from drumline.streams.core.batch_dedup import checksum
from drumline.streams.core.stage import RecordsFailed, Stage
from drumline.streams.worker.ack_queue import Delivery
from drumline.streams.worker.output import OutputProducer, ProducerFailed
from drumline.streams.worker.records.decoder import RecordDecoder
from drumline.streams.worker.stage_runner import StageRunner
from drumline.streams.worker.telemetry import count_batches, count_input, count_merged

log = structlog.get_logger()


class PartitionRevoked(Exception):
    """The record's partition belongs to another worker now."""


class RecordHandler:
    """Processes the records of one worker.

    Owned by `StreamWorker`; used in its event loop. `readers`: topic -> runners of the stages that read it.
    """

    def __init__(
        self,
        readers: Mapping[str, Sequence[StageRunner]],
        codec: Codec,
        decoder: RecordDecoder,
        output: OutputProducer,
        clock: Callable[[], int],
    ) -> None:
        self._readers, self._codec, self._decoder, self._output = readers, codec, decoder, output
        self.clock = clock

    def owns(self, message: Any) -> bool:
        """Return whether the partition of a message is this worker's, in each stage that reads it."""
        return all(stage is not None for stage in self._stages(message))

    def _stages(self, message: Any) -> list[Stage | None]:
        """Return the stages that read a message."""
        return [runner.stage(message.partition) for runner in self._readers[message.topic]]

    async def handle(self, messages: Sequence[Any], delivery: Delivery) -> None:
        """Process messages of one topic and partition, those that have tables of one unit and follow each other
        together. Raises PartitionRevoked, ProducerFailed, RegistryUnavailable.
        """
        if len(messages) > 1 and messages[0].topic in DERIVED_TOPICS and await self._handle_batches(messages, delivery):
            return
        tables: list[tuple[Any, JoinedRecord]] = []
        stages = self._stages(messages[0])
        for message in messages:
            self._check_owned(message, stages)
            if message.topic in KEPT_TOPICS and is_counted(message.headers):
                continue  # its host has published the windows of these rows
            record: JoinedRecord | None = None
            of_message = message.topic, message.value, message.key, message.headers
            try:
                if len(messages) > 1:  # none of them needs the registry
                    record = self._codec.joined_record(*of_message)
                else:
                    record = await self._decoder.joined_record(*of_message)
            except BadRecord as error:
                await self._bury(message, delivery, error)
                continue
            unit = None if record is None else record.unit
            if tables and unit != tables[0][1].unit:
                await self._handle_tables(tables, stages, delivery)
                tables = []
            if record is None:
                await self._handle_batch(message, delivery)
            elif unit is None:
                await self._handle_parts(message, delivery, record)
            else:
                tables.append((message, record))
        if tables:
            await self._handle_tables(tables, stages, delivery)

    async def _handle_tables(
        self, tables: Sequence[tuple[Any, JoinedRecord]], stages: Sequence[Stage | None], delivery: Delivery
    ) -> None:
        """Process messages whose tables are of one unit: as one, unless one of them is bad. Raises as `handle` does."""
        messages = [message for message, _ in tables]
        self._check_owned(messages[0], stages)
        if len(tables) > 1:
            merged = None
            with suppress(BadRecord):  # each by itself shows which one
                merged = self._codec.together(messages[0].topic, [record for _, record in tables])
            if merged is not None and is_inside(merged, *map(_appended_ms, messages)):
                await self._handle_merged(messages, delivery, merged)
                return
        for message, record in tables:
            self._check_owned(message, stages)
            await self._handle_parts(message, delivery, record)

    async def _handle_parts(self, message: Any, delivery: Delivery, record: JoinedRecord) -> None:
        """Process the parts of a message. Raises as `handle` does."""
        try:
            parts = self._codec.parts_of(message.topic, record)
            if parts.merged is not None and is_inside(parts.merged, _appended_ms(message)):
                await self._handle_merged([message], delivery, parts.merged)
                return
            values = parts.values
        except BadRecord as error:
            await self._bury(message, delivery, error)
            return
        stages = self._stages(message)
        for number, value in enumerate(values, 1):
            self._check_owned(message, stages)
            await self._handle_batch(message, delivery, number, value, parts)

    def _check_owned(self, message: Any, stages: Sequence[Stage | None]) -> None:
        """Raise PartitionRevoked if a partition was revoked since it had these stages, and perhaps assigned again: the
        new ones read all from the last commit on.
        """
        if any(now is not before for now, before in zip(self._stages(message), stages, strict=True)):
            raise PartitionRevoked

    async def _handle_batch(
        self, message: Any, delivery: Delivery, part: int = 0, value: bytes | None = None, of: Parts | None = None
    ) -> None:
        """Process a batch. `part`, `value`, `of`: of a part of the message."""
        bytes_of = message.value if value is None else value
        try:
            batch = await self._decoder.decode(
                message.topic, bytes_of, _appended_ms(message), message.key, message.headers, of
            )  # fmt: skip
            if message.topic in RAW_TOPICS:  # a worker's results replace each other
                batch.content = checksum(bytes_of)
            count_input(batch, self.clock())
            for runner in self._owned(message):
                if message.topic in DERIVED_TOPICS and runner.is_fenced(message):
                    continue
                offset = runner.position(message.topic, message.partition, message.offset, part)
                work = partial(_on_batch, batch=batch, offset=offset, now_ns=self.clock())
                delivery.add(*await runner.apply(message.partition, work))
        except BadRecord as error:
            await self._bury(message, delivery, error, part, value)
        except (PartitionRevoked, ProducerFailed, RegistryUnavailable):
            raise
        except Exception as error:
            await self._bury_failed(message, delivery, error, part, value)

    async def _handle_batches(self, messages: Sequence[Any], delivery: Delivery) -> bool:
        """Process messages with results of a stage as one, and return True; False where some are bad, or fenced: then
        nothing was processed. Raises as `handle` does.
        """
        last = messages[-1]
        received = [Received(of.value or b"", _appended_ms(of), of.key, of.headers) for of in messages]
        table = self._codec.decode_together(last.topic, received)
        if table is None or any(runner.is_fenced(of) for runner in self._owned(last) for of in messages):
            return False
        try:
            count_batches(table, self.clock())
            for runner in self._owned(last):
                offsets = [runner.position(last.topic, last.partition, message.offset, 0) for message in messages]
                work = partial(_on_batches, table=table, offsets=np.array(offsets), now_ns=self.clock())
                delivery.add(*await runner.apply(last.partition, work))
        except (PartitionRevoked, ProducerFailed):
            raise
        except Exception as error:  # as of `_handle_merged`
            for message in messages:
                await self._bury_failed(message, delivery, error)
        return True

    async def _handle_merged(self, messages: Sequence[Any], delivery: Delivery, parts: MergedParts) -> None:
        """Process all parts of messages at once: they are within their bounds. Raises as `handle` does."""
        last = messages[-1]
        try:
            count_merged(parts, self.clock())
            for runner in self._owned(last):
                first = [runner.position(last.topic, last.partition, message.offset, 1) for message in messages]
                offsets = np.concatenate([at + np.arange(size) for at, size in zip(first, parts.sizes, strict=True)])
                work = partial(_on_merged, parts=parts, offsets=offsets, now_ns=self.clock())
                delivery.add(*await runner.apply(last.partition, work))
        except (PartitionRevoked, ProducerFailed):
            raise
        except RecordsFailed as failed:
            for number, error in sorted(failed.errors.items()):
                await self._bury_failed(messages[number], delivery, error)
        except Exception as error:  # their unit is in quarantine, with what all of them had told of it
            for message in messages:
                await self._bury_failed(message, delivery, error)

    def _owned(self, message: Any) -> Iterator[StageRunner]:
        """Yield the runners that read a message. Raises PartitionRevoked at one without its stage."""
        for runner in self._readers[message.topic]:
            if runner.stage(message.partition) is None:
                raise PartitionRevoked
            yield runner

    async def _bury_failed(
        self, message: Any, delivery: Delivery, error: Exception, part: int = 0, value: bytes | None = None
    ) -> None:
        place = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
        log.error("dead letter: its stage failed", error=type(error).__name__, **place)
        await self._bury(message, delivery, error, part, value)

    async def _bury(
        self, message: Any, delivery: Delivery, error: Exception, part: int = 0, value: bytes | None = None
    ) -> None:
        """Produce the dead letter of a message or part; of parts that were signed together, one of the message."""
        if part and is_signed(message.headers):
            part, value = 0, None
        if message.offset in delivery.buried:
            return
        if not part:
            delivery.buried.add(message.offset)
        delivery.writes.append(await self._output.send_dead_letter(message, error, part, value))


def _on_batch(stage: Stage, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
    return stage.on_batch(batch, offset, now_ns)


def _on_batches(stage: Stage, table: BatchTable, offsets: Ints, now_ns: int) -> list[Batch]:
    return stage.on_batches(table, offsets, now_ns)


def _on_merged(stage: Stage, parts: MergedParts, offsets: Ints, now_ns: int) -> list[Batch]:
    return stage.on_merged(parts, offsets, now_ns)


def _appended_ms(message: Any) -> int:
    """Return when Kafka took a message in."""
    return round((message.timestamp or 0) * 1000)
