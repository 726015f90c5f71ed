"""Runs one stage in Faust: a table for its state, a stage object per partition, batches in, batches out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from drumline.infra.telemetry import metrics
from drumline.schemas.batch import Batch
from drumline.streams.core.records import key as state_key
from drumline.streams.core.stage import Stage
from drumline.streams.worker.ack_queue import Output
from drumline.streams.worker.offsets import Positions, replaced
from drumline.streams.worker.partition_store import PartitionStore
from drumline.streams.worker.status_file import open_windows
from drumline.streams.worker.telemetry import Drops, count_drops

log = structlog.get_logger()
Send = Callable[[Batch], Awaitable[Awaitable[object]]]
Fail = Callable[[BaseException], Awaitable[None]]

_PARTITION = 5  # b"0042|" before every key: a memory store does not know which partition wrote a key


class UnreadableState(RuntimeError):
    """The changelog holds state that this version, with these settings, cannot read."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(
            f"the state of stage {stage} was not written by this version with these settings ({error!r}); set "
            "another DRUMLINE_STREAM__APP_ID: the worker then works all topics off again, and results replace earlier "
            "ones"
        )


class StageRunner:
    """`build`: makes the stage of a partition from its store. `send`: hands a batch to the producer and returns what
    to await for the broker's acknowledgement. `fail`: ends the worker, for Faust swallows what recovery raises. `ids`:
    topic -> Kafka's id of it."""

    def __init__(
        self,
        app: Any,
        name: str,
        build: Callable[[PartitionStore], Stage],
        send: Send,
        fail: Fail,
        ids: Mapping[str, str],
    ) -> None:
        self.name = name
        self._ids = ids
        self._positions: dict[int, Positions] = {}
        self._app, self._build, self._send, self._fail = app, build, send, fail
        self._parts: dict[int, tuple[Stage, PartitionStore]] = {}
        self._counted: dict[int, Drops] = {}
        self.table = app.Table(name, key_type=bytes, value_type=bytes)
        self.table.on_recover(self._recovered)

    @property
    def partitions(self) -> list[int]:
        return sorted(self._parts)

    @property
    def open_windows(self) -> int:
        return sum(open_windows(stage) for stage, _ in self._parts.values())

    def stage(self, partition: int) -> Stage | None:
        """The stage of a partition, None if the partition is not (or no longer) this worker's."""
        part = self._parts.get(partition)
        return part[0] if part else None

    def replaced(self, topic: str, partition: int) -> bool:
        """Whether the state that recovery has read is of another topic of that name."""
        data = self.table.data.data.get(_name(partition, state_key("t", topic)))
        try:
            return replaced(data, self._ids.get(topic, ""))
        except Exception:  # said when the stage is built
            return False

    async def _recovered(self) -> None:
        """After every rebalance, before anything flows: build stages anew from what the changelog says."""
        try:
            self._restore_readable()
        except UnreadableState as error:
            await self._fail(error)

    def _restore_readable(self) -> None:
        """Raises UnreadableState."""
        try:
            self._restore()
        except Exception as error:
            if not isinstance(error, ValueError):  # which says in words what cannot be read
                log.exception("state not restored", stage=self.name)
            raise UnreadableState(self.name, error) from error

    def _restore(self) -> None:
        started = time.perf_counter()
        changelog = self.table.changelog_topic.get_topic_name()
        mine = {tp.partition for tp in self._app.assignor.assigned_actives() if tp.topic == changelog}
        for _, store in self._parts.values():
            store.closed = True
        found: dict[int, dict[str, bytes]] = {partition: {} for partition in mine}
        data = self.table.data.data
        for key in list(data):
            partition = int(key[: _PARTITION - 1])
            if partition in mine:
                found[partition][key[_PARTITION:].decode()] = data[key]
            else:  # Faust reads the whole changelog again when the partition comes back
                del data[key]
        metrics.STREAM_RECOVERIES.labels(self.name).inc()
        self._parts, self._positions, self._counted = {}, {}, {}
        for partition, state in found.items():
            store = PartitionStore(state, self._writer(partition))
            self._parts[partition] = (self._build(store), store)
            self._positions[partition] = Positions(store, self._ids)
        log.info(
            "state restored",
            stage=self.name,
            partitions=sorted(mine),
            keys=sum(map(len, found.values())),
            seconds=round(time.perf_counter() - started, 3),
        )

    def _writer(self, partition: int) -> Callable[[str, bytes | None], Awaitable[object]]:
        data = self.table.data.data

        def write(key: str, value: bytes | None) -> Awaitable[object]:
            name = _name(partition, key)
            if value is None:
                data.pop(name, None)
            else:
                data[name] = value
            sent: Awaitable[object] = self.table.send_changelog(partition, name, value)
            return sent

        return write

    def position(self, topic: str, partition: int, offset: int) -> int:
        """What the stage of a partition is given as a record's offset (positions.py). Raises KeyError if the partition
        is not this worker's."""
        return self._positions[partition].of(topic, offset)

    async def apply(
        self, partition: int, work: Callable[[Stage], list[Batch]]
    ) -> tuple[list[Awaitable[object]], list[Output]]:
        """Call the stage of a partition, send what it returns; (changelog writes to await, outputs to await).

        Raises KeyError if the partition is not this worker's, and whatever the stage raises.
        """
        stage, store = self._parts[partition]
        batches = work(stage)
        self._counted[partition] = count_drops(self.name, stage, self._counted.get(partition, (0, 0)))
        writes = store.take_pending()
        outputs = [Output(stage, store, batch, await self._send(batch)) for batch in batches]
        return writes, outputs


def _name(partition: int, key: str) -> bytes:
    return b"%04d|" % partition + key.encode()
