"""Process records: decode them, apply them to the stages that read their topic, bury what is bad."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import structlog

from drumline.infra.runtime.stage import Stage
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec, OpenRecord, Received
from drumline.schemas.dead_letters import is_counted
from drumline.schemas.errors import BadRecord, RegistryUnavailable
from drumline.schemas.record_table import BatchTable, Ints, RecordTable
from drumline.schemas.tenants import is_signed
from drumline.schemas.topics import DERIVED_TOPICS, KEPT_TOPICS, RAW_TOPICS
from drumline.streams.core.batch_dedup import checksum
from drumline.streams.worker.ack_queue import Delivery
from drumline.streams.worker.output import OutputProducer, ProducerFailed
from drumline.streams.worker.records.decoder import RecordDecoder
from drumline.streams.worker.stage_runner import StageRunner
from drumline.streams.worker.telemetry import count_input

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
        """Process messages of one topic and partition, those of one unit that follow each other together.

        Raises PartitionRevoked, ProducerFailed, RegistryUnavailable.
        """
        group: list[tuple[Any, OpenRecord]] = []
        stages = self._stages(messages[0])
        for message in messages:
            self._check_owned(message, stages)
            if message.topic in KEPT_TOPICS and is_counted(message.headers):
                continue  # its host has published the windows of these rows
            try:
                record = await self._decoder.open(message.topic, _received(message))
            except RegistryUnavailable:
                raise
            except Exception as error:
                await self._bury(message, delivery, error)
                continue
            if group and (record.unit is None or record.unit != group[0][1].unit):
                await self._handle_group(group, stages, delivery)
                group = []
            group.append((message, record))
        if group:
            await self._handle_group(group, stages, delivery)

    async def _handle_group(
        self, group: Sequence[tuple[Any, OpenRecord]], stages: Sequence[Stage | None], delivery: Delivery
    ) -> None:
        """Process messages of one unit as one table, unless one of them is bad. Raises as `handle` does."""
        messages = [message for message, _ in group]
        self._check_owned(messages[0], stages)
        table: RecordTable | None = None
        try:
            table = await self._decoder.read(messages[0].topic, [record for _, record in group])
        except RegistryUnavailable:
            raise
        except Exception:  # each by itself shows which one
            pass
        if table is not None:
            await self._apply(messages, delivery, table, 0 if group[0][1].record is None else 1)
        elif len(group) > 1:
            for single in group:
                await self._handle_group([single], stages, delivery)
        else:
            await self._handle_parts(*group[0], stages, delivery)

    async def _handle_parts(
        self, message: Any, record: OpenRecord, stages: Sequence[Stage | None], delivery: Delivery
    ) -> None:
        """Process the parts of a message of which one is bad, each by itself. Raises as `handle` does."""
        try:
            values = self._codec.values(message.topic, record)
        except BadRecord as error:
            await self._bury(message, delivery, error)
            return
        for part, value in enumerate(values, 0 if record.record is None else 1):
            self._check_owned(message, stages)
            of_part = value if part else None
            try:
                batch = await self._decoder.decode(message.topic, value, record)
            except RegistryUnavailable:
                raise
            except Exception as error:
                await self._bury(message, delivery, error, part, of_part)
            else:
                await self._apply([message], delivery, BatchTable.of([batch]), part, of_part)

    def _check_owned(self, message: Any, stages: Sequence[Stage | None]) -> None:
        """Raise PartitionRevoked if a partition was revoked since it had these stages, and perhaps assigned again: the
        new ones read all from the last commit on.
        """
        if any(now is not before for now, before in zip(self._stages(message), stages, strict=True)):
            raise PartitionRevoked

    async def _apply(
        self,
        messages: Sequence[Any],
        delivery: Delivery,
        table: RecordTable,
        first_part: int,
        value: bytes | None = None,
    ) -> None:
        """Apply the parts of messages to the stages that read them. Raises as `handle` does.

        `first_part`: number of the first part of each message, 0 = a batch. `value`: of the part, where it is one.
        """
        last, failed = messages[-1], dict[int, Exception]()
        is_raw = last.topic in RAW_TOPICS  # a worker's results replace each other
        if is_raw and isinstance(table, BatchTable) and table.parts == len(messages):
            table.contents = [checksum(value or message.value) for message in messages]
        try:
            count_input(table, self.clock())
            for runner in self._owned(last):
                taken = [not (last.topic in DERIVED_TOPICS and runner.is_fenced(message)) for message in messages]
                numbers = [number for number, is_taken in enumerate(taken) if is_taken]
                if not numbers:
                    continue
                parts = table if all(taken) else table.only(np.array(numbers))  # results are batches, of one part
                first = [runner.position(last.topic, last.partition, messages[n].offset, first_part) for n in numbers]
                offsets = np.concatenate([at + np.arange(size) for at, size in zip(first, parts.sizes, strict=True)])
                of_stage = dict[int, Exception]()
                work = partial(_apply_table, table=parts, offsets=offsets, now_ns=self.clock(), failed=of_stage)
                delivery.add(*await runner.apply(last.partition, work))
                failed |= {numbers[record]: error for record, error in of_stage.items()}
        except (PartitionRevoked, ProducerFailed):
            raise
        except Exception as error:
            failed = dict.fromkeys(range(len(messages)), error)
        for number in sorted(failed):
            part = first_part if value is not None else 0
            await self._bury_failed(messages[number], delivery, failed[number], part, value)

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


def _apply_table(
    stage: Stage, table: RecordTable, offsets: Ints, now_ns: int, failed: dict[int, Exception]
) -> list[Batch]:
    """Apply a table, and take what failed at once: the stage may be used again before its results are sent."""
    out = stage.apply(table, offsets, now_ns)
    failed |= stage.failed
    return out


def _received(message: Any) -> Received:
    return Received(message.value, round((message.timestamp or 0) * 1000), message.key, message.headers)
