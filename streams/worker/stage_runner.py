"""Run one stage in Faust: a table for its state, a stage object per partition, batches in, batches out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import structlog

from drumline.infra.runtime.stage import Stage, open_windows
from drumline.infra.telemetry import metrics
from drumline.schemas.batch import Batch
from drumline.schemas.dead_letters import Header
from drumline.schemas.epochs import is_fenced, read_epoch, write_epoch
from drumline.streams.core.records import job_of_key
from drumline.streams.core.records import key as state_key
from drumline.streams.worker.ack_queue import Output
from drumline.streams.worker.compressed_values import CompressedValue, Value, by_block
from drumline.streams.worker.faust_patches.fencing import ChangelogFencing
from drumline.streams.worker.offsets import TopicPositions, was_replaced
from drumline.streams.worker.output import ProducerFailed
from drumline.streams.worker.partition_store import Change, CheckpointOrder, Keep, PartitionStore
from drumline.streams.worker.partition_store import Send as ChangeSend
from drumline.streams.worker.quarantine import report
from drumline.streams.worker.telemetry import Drops, count_drops

log = structlog.get_logger()
Send = Callable[[Batch, Header], Awaitable[Awaitable[object]]]
Fail = Callable[[BaseException], Awaitable[None]]

_PARTITION = 5  # b"0042|" before every key: a memory store does not keep the partition that wrote a key
#: State keys of the highest epoch in the results that the stage reads, by their source.
_SOURCE = state_key("x", "")


class UnreadableState(RuntimeError):
    """Fatal: the changelog holds state that this version, with these settings, cannot read."""

    def __init__(self, stage: str, error: Exception) -> None:
        super().__init__(
            f"the state of stage {stage} was not written by this version with these settings ({error!r}); set "
            "another DRUMLINE_STREAM__APP_ID: the worker then processes all topics again, and results replace earlier "
            "ones"
        )


class StageRunner:
    """Holds one stage's objects, one per partition, and its Faust table.

    Built by `StreamWorker`; used in its event loop. Stages are rebuilt from the changelog after every rebalance.
    `build`: creates the stage of a partition from its store. `send`: passes a batch to the producer; returns the
    awaitable of the broker's acknowledgement. `fail`: ends the worker, for Faust swallows recovery's errors. `ids`:
    topic -> Kafka's id. `fencing`: of all changelogs. `order`: of the state's checkpoints (`PartitionStore`).
    """

    def __init__(
        self,
        app: Any,
        name: str,
        build: Callable[[PartitionStore], Stage],
        send: Send,
        fail: Fail,
        ids: Mapping[str, str],
        fencing: ChangelogFencing,
        order: CheckpointOrder | None = None,
    ) -> None:
        self.name = name
        self._order = order
        self._fencing = fencing
        self._ids = ids
        self._positions: dict[int, TopicPositions] = {}
        self._app, self._build, self._send, self._fail = app, build, send, fail
        self._parts: dict[int, tuple[Stage, PartitionStore]] = {}
        self._counted: dict[int, Drops] = {}
        self._highest: dict[int, dict[str, int]] = {}
        self.table = app.Table(name, key_type=bytes, value_type=bytes)
        self.table.on_recover(self._recovered)
        fencing.guard(self.table)

    @property
    def partitions(self) -> list[int]:
        """Return the partitions that this worker has."""
        return sorted(self._parts)

    @property
    def open_windows(self) -> int:
        """Return the open windows of all partitions."""
        return sum(open_windows(stage) for stage, _ in self._parts.values())

    def checkpointed(self, partition: int | None = None) -> list[PartitionStore]:
        """Return the stores whose changes wait for checkpoints: of all partitions, or of one."""
        stores = [store for number, (_, store) in self._parts.items() if partition in (None, number)]
        return [store for store in stores if store.is_checkpointed]

    def stage(self, partition: int) -> Stage | None:
        """Return the stage of a partition, None if the partition is not (or no longer) this worker's."""
        part = self._parts.get(partition)
        return part[0] if part else None

    def jobs(self, partition: int) -> set[str]:
        """Return the jobs of which the table has state of a partition, also before the stages are rebuilt."""
        begin = _name(partition, "")
        names = (name[_PARTITION:].decode() for name in self.table.data.data if name.startswith(begin))
        return {job for job in map(job_of_key, names) if job}

    def close(self) -> None:
        """Drop the stages: they may change nothing until the partitions are recovered, by this worker or another."""
        for stage, store in self._parts.values():
            store.closed = True
            stage.release()
        self._parts = {}

    def was_replaced(self, topic: str, partition: int) -> bool:
        """Return True if the recovered state belongs to another topic of that name."""
        data = self.table.data.data.get(_name(partition, state_key("t", topic)))
        try:
            return was_replaced(data, self._ids.get(topic, ""))
        except Exception:  # reported when the stage is built
            return False

    async def _recovered(self) -> None:
        """Rebuild the stages from the changelog; called after every rebalance, before records flow."""
        try:
            self._restore_readable()
        except UnreadableState as error:
            await self._fail(error)

    def _restore_readable(self) -> None:
        """Raises UnreadableState."""
        try:
            self._restore()
        except Exception as error:
            if not isinstance(error, ValueError):  # whose message names the unreadable state
                log.exception("state not restored", stage=self.name)
            raise UnreadableState(self.name, error) from error

    def _restore(self) -> None:
        started = time.perf_counter()
        changelog = self._changelog(0).topic
        assigned = {tp.partition for tp in self._app.assignor.assigned_actives() if tp.topic == changelog}
        self.close()
        states: dict[int, dict[str, Value]] = {partition: {} for partition in assigned}
        data = self.table.data.data
        for key in list(data):
            partition = int(key[: _PARTITION - 1])
            if partition in assigned:
                states[partition][key[_PARTITION:].decode()] = data[key]
            else:  # Faust reads the whole changelog again when the partition returns
                del data[key]
        metrics.STREAM_RECOVERIES.labels(self.name).inc()
        self._positions, self._counted, self._highest = {}, {}, {}
        for partition, state in states.items():
            changes = self._writer(partition), self._order, self._sender(partition), self._keeper(partition)
            store = PartitionStore(by_block(state), *changes)
            for key in self._fencing.take_stale(self._changelog(partition)):
                store.write_again(key[_PARTITION:].decode())
            self._parts[partition] = (self._build(store), store)
            self._positions[partition] = TopicPositions(store, self._ids)
            sources = (name for name in state if name.startswith(_SOURCE))
            self._highest[partition] = {name.removeprefix(_SOURCE): int(store[name]) for name in sources}
        log.info(
            "state restored",
            stage=self.name,
            partitions=sorted(assigned),
            keys=sum(map(len, states.values())),
            seconds=round(time.perf_counter() - started, 3),
        )

    def _changelog(self, partition: int) -> Any:
        from faust.types import TP

        return TP(self.table.changelog_topic.get_topic_name(), partition)

    def _writer(self, partition: int) -> Callable[[str, bytes | None], Awaitable[object]]:
        data, topic = self.table.data.data, self.table.changelog_topic
        headers = self._fencing.headers(self._changelog(partition))

        def write(key: str, value: bytes | None) -> Awaitable[object]:
            name = _name(partition, key)
            if value is None:
                data.pop(name, None)
            else:
                data[name] = value
            sent: Awaitable[object] = topic.send_soon(
                key=name, value=value, partition=partition, headers=headers, eager_partitioning=True
            )
            return sent

        return write

    def _sender(self, partition: int) -> ChangeSend:
        """Return what passes changes to the producer as batches: by itself each costs several times more."""
        data, place = self.table.data.data, self._changelog(partition)
        headers = self._fencing.headers(place)

        async def send(changes: Sequence[Change]) -> tuple[int, Awaitable[object]]:
            producer = self._app.producer._ensure_producer()
            batch, count = producer.create_batch(), 0
            for key, value in changes:
                name = _name(partition, key)
                if batch.append(key=name, value=value, timestamp=None, headers=headers) is None:  # full
                    break
                count += 1
                if value is None:
                    data.pop(name, None)
                else:
                    data[name] = value
            batch.close()  # it waits for no other records
            return count, await producer.send_batch(batch, place.topic, partition=partition)

        return send

    def _keeper(self, partition: int) -> Keep:
        """Return what replaces values in the table by the same ones, compressed."""
        data = self.table.data.data

        def keep(key: str, value: CompressedValue) -> None:
            data[_name(partition, key)] = value

        return keep

    def position(self, topic: str, partition: int, offset: int, part: int) -> int:
        """Return the position that the stage gets as the offset of a record or part (offsets.py).

        Raises KeyError if the partition is not this worker's.
        """
        return self._positions[partition].position_of(topic, offset, part)

    def is_fenced(self, message: Any) -> bool:
        """Return True if a result that the stage reads came from a worker that had lost its partition.

        Raises KeyError if the message's partition is not this worker's.
        """
        epoch, source = read_epoch(message.headers)
        _, store = self._parts[message.partition]
        highest = self._highest[message.partition]
        before = highest.get(source)
        if is_fenced(highest, epoch, source):
            metrics.STREAM_FENCED.labels(message.topic).inc()
            log.warning(
                "ignored a result of a worker that had lost the partition",
                topic=message.topic, partition=message.partition, offset=message.offset, source=source,
            )  # fmt: skip
            return True
        if highest.get(source) != before:
            store[_SOURCE + source] = str(epoch).encode()
        return False

    async def apply(
        self, partition: int, work: Callable[[Stage], list[Batch]]
    ) -> tuple[list[Awaitable[object]], list[Output]]:
        """Call the stage of a partition and produce its results; return (changelog writes to await, outputs to await).

        A result that cannot be encoded puts its unit in quarantine, like an error in the stage.

        Raises KeyError if the partition is not this worker's, ProducerFailed, and whatever the stage raises.
        """
        stage, store = self._parts[partition]
        batches = work(stage)
        self._counted[partition] = count_drops(self.name, stage, self._counted.get(partition, Drops()))
        writes = store.take_pending()
        if not batches and not stage.incidents:  # as nearly always
            return writes, []
        place = self._changelog(partition)
        header = write_epoch(self._fencing.epoch(place), f"{place.topic}:{place.partition}")
        outputs = []
        for batch in batches:
            try:
                outputs.append(Output(stage, store, batch, await self._send(batch, header)))
            except ProducerFailed:
                raise
            except Exception as error:
                stage.reject(batch, error)
        incidents, stage.incidents = stage.incidents, []
        for incident in incidents:
            writes.append(await self._send(report(self.name, partition, incident), header))
        return writes, outputs


def _name(partition: int, key: str) -> bytes:
    return b"%04d|" % partition + key.encode()
