"""Fence the changelogs of a worker: mark each assigned partition, and ignore what its former writers add afterwards.

Kafka gives a partition to another worker once a session has expired. A worker that was halted for longer (SIGSTOP, a
suspended machine) does not notice at once: woken, it writes old state behind its successor's, and the next recovery
took that for the newest. The rule is in changelog_fence.py; Faust calls it where it reads and before it reads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from drumline.infra.telemetry import metrics
from drumline.schemas.dead_letters import Header
from drumline.schemas.epochs import is_ahead, read_epoch, write_epoch
from drumline.schemas.topics import Topic
from drumline.streams.worker.clock import StreamClock
from drumline.streams.worker.faust_patches.changelog_fence import MARKER_KEY, ChangelogFence, next_epoch
from drumline.streams.worker.halts import rejoin

log = structlog.get_logger()


class ChangelogFencing:
    """Keeps the fence and the epoch of each changelog partition of one worker.

    Owned by `StreamWorker`; used in its event loop. `close_stages`: called before markers are written; the worker must
    not change state until it has recovered. `clock`: gives epochs.
    """

    def __init__(self, app: Any, close_stages: Callable[[], None], clock: StreamClock) -> None:
        self._app, self._close_stages, self._clock = app, close_stages, clock
        self._writer = os.urandom(8)
        self._fences: dict[Any, ChangelogFence] = {}
        self._epochs: dict[Any, int] = {}

    def guard(self, table: Any) -> None:
        """Make `table` ignore fenced records of its changelog."""
        apply = table.apply_changelog_batch
        table.apply_changelog_batch = lambda events: apply([event for event in events if self._accepts(event.message)])

    def _accepts(self, message: Any) -> bool:
        fence = self._fences.setdefault(message.tp, ChangelogFence())
        epoch, _ = read_epoch(message.headers)
        if is_ahead(epoch, (message.timestamp or 0) * 1_000):
            epoch = -1  # below all others
        if message.key == _marker_key(message.tp):  # exactly: a run may end like it
            fence.mark(epoch or 0, message.value or b"")
            return False
        accepted = fence.accepts(message.key, epoch)
        metrics.STREAM_FENCED.labels(message.topic).inc(not accepted)
        return accepted

    def watch(self) -> None:
        """Mark changelog partitions before recovery asks for their ends. Call once, before the app starts."""
        recovery = self._app.tables.recovery
        build = recovery._build_highwaters

        async def build_highwaters(consumer: Any, tps: Any, destination: Any, title: str) -> None:
            if title == "active":
                await self._mark(list(tps))
            await build(consumer, tps, destination, title)

        recovery._build_highwaters = build_highwaters

    async def _mark(self, tps: Sequence[Any]) -> None:
        """Write a marker with a new epoch to each partition, behind all that this worker has written to it."""
        self._close_stages()
        recovery, writes = self._app.tables.recovery, []
        if tps and self._clock.skew_s is None:
            await self._learn_time(tps[0].partition)
        for tp in tps:
            if recovery.active_offsets.get(tp) is None:  # read from its beginning
                self._fences[tp] = ChangelogFence()
            fence = self._fences.setdefault(tp, ChangelogFence())
            epoch = self._epochs[tp] = next_epoch(self._clock() // 1_000_000, fence.epoch)
            write = recovery.tp_to_table[tp].changelog_topic.send_soon(
                key=_marker_key(tp),
                value=self._writer,
                partition=tp.partition,
                headers=[write_epoch(epoch)],
                eager_partitioning=True,
            )
            self._clock.watch(write)
            writes.append(write)
        for write in writes:
            await write

    async def _learn_time(self, partition: int) -> None:
        """Send a tick, whose acknowledgement brings the broker's time: this host's clock may be wrong."""
        tick = asyncio.ensure_future(await self._app.producer.send(Topic.TICK, None, b"", partition, None, None))
        self._clock.watch(tick)
        await tick

    async def holds_all(self) -> bool:
        """Return True if this worker's marker is the valid one in each of its changelog partitions.

        If not, another writer has marked with as high an epoch: recovery is then started again, with higher epochs,
        unless the group has moved the partitions meanwhile.
        """
        recovery = self._app.tables.recovery
        lost = [tp for tp in recovery.active_tps if not self._holds(tp)]
        if not lost:
            return True
        # Asked after the markers were read: a worker that lost the partition to one of their writers is no member now.
        thread = self._app.consumer._thread
        if await thread.call_thread(thread._ensure_consumer()._coordinator._do_heartbeat):
            recovery.signal_recovery_start.set()
        else:  # a member that found no coordinator would wait for ever; one that lost its membership joins anyway
            rejoin(self._app)
        log.info("changelogs have newer markers; restoring again", partitions=len(lost))
        return False

    def _holds(self, tp: Any) -> bool:
        fence = self._fences.get(tp, ChangelogFence())
        return fence.epoch == self._epochs.get(tp) and fence.writer == self._writer

    def epoch(self, tp: Any) -> int:
        """Return the epoch with which this worker writes to a changelog partition."""
        return self._epochs.get(tp, 0)

    def headers(self, tp: Any) -> list[Header]:
        """Return the headers of this worker's records in a changelog partition."""
        return [write_epoch(self.epoch(tp))]

    def take_stale(self, tp: Any) -> set[bytes]:
        """Return the keys that have to be written again, once, and report what was ignored since the last call."""
        fence = self._fences.get(tp, ChangelogFence())
        stale, fence.stale, fenced, fence.fenced = fence.stale, set(), fence.fenced, 0
        if fenced:
            log.warning(
                "ignored records that a worker wrote after it had lost the partition",
                topic=tp.topic, partition=tp.partition, records=fenced, rewritten=len(stale),
            )  # fmt: skip
        return stale


def _marker_key(tp: Any) -> bytes:
    return f"{tp.partition:04d}|{MARKER_KEY}".encode()
