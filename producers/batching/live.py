"""Batches of one live process: takes rows, emits batches with sequence, losses and watermark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.batching.builder import BatchHeader, make_batch
from drumline.producers.batching.cuts import HEARTBEAT_NS, MAX_ROWS
from drumline.producers.derive.nccl.kernel_names import hash_text
from drumline.producers.identity import Identity
from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import rows_inside
from drumline.schemas.columns import Array
from drumline.schemas.keys import record_key
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Size of a batch as Avro, a tenth less than Kafka accepts: kernel names may have thousands of bytes.
MOST_BYTES = 900_000
#: Bytes of a string's length in Avro.
_LENGTH = 3


class FeedProgress(NamedTuple):
    """Time of a write and the state of the process at it.

    Attributes:
        now_ns: current time.
        watermark_ns: no later row starts before it.
        complete_step: newest step without rows to come, -1 = none.
    """

    now_ns: int
    watermark_ns: int
    complete_step: int = -1


@dataclass(slots=True)
class _Feed:
    """State of one (topic, communicator), which the next batch's envelope continues."""

    topic: Topic
    communicator: str
    sequence: int = 0
    dropped: int = 0
    sent_ns: int = 0
    watermark_ns: int = 0
    complete_step: int = -1
    steps_from: str = ""


def split_rows(topic: Topic, table: Table) -> list[Array]:
    """Return the row positions of each batch, by start: at most MAX_ROWS rows and MOST_BYTES, dictionaries included.

    Rows outside the bounds of the contract are in no batch.
    A suffix of the batches is split the same way again, so a decoder that restarts can skip batches already written.
    """
    order, parts, low = np.argsort(table["start_ns"], kind="stable"), [], 0
    inside = rows_inside(topic, table.columns) if table.rows else None
    if inside is not None:
        order = order[inside[order]]
    row_bytes = sum(np.dtype(column.dtype).itemsize for column in model(topic).columns)
    while low < len(order):
        part = order[low : low + MAX_ROWS]
        size = np.full(len(part), row_bytes, np.int64)
        for column in model(topic).columns:
            if column.dictionary:
                used, first = np.unique(table[column.name][part], return_index=True)
                strings = table.dictionaries[column.dictionary]
                size[first] += [len(strings[i].encode()) + _LENGTH for i in used.tolist()]
        part = part[: max(1, int(np.searchsorted(np.cumsum(size), MOST_BYTES, side="right")))]
        parts.append(part)
        low += len(part)
    return parts


class BatchWriter:
    """Turns rows of one live process into batches and passes each to `emit(topic, key, batch)`.

    The decoder's output owns it. Runs in the decoder's thread and blocks only as `emit` does. Guarantees: sequences
    without gaps, and watermarks and complete steps that never fall. Times are ns since the epoch.

    `separate_losses`: a batch states lost rows or has rows, not both. `is_silent`: no heartbeats are sent, as no rows
    may come for hours.
    """

    def __init__(self, identity: Identity, emit: Callable[[Topic, str, Batch], None]) -> None:
        self.identity = identity
        self.separate_losses = self.is_silent = False
        self._emit = emit
        self._feeds: dict[tuple[Topic, str], _Feed] = {}

    def write(
        self,
        topic: Topic,
        table: Table,
        progress: FeedProgress,
        *,
        communicator: int | None = None,
        dropped: int = 0,
        steps_from: str = "",
    ) -> None:
        """Emit rows, by start, in the batches of `split_rows`; columns that the topic does not have are ignored.

        `communicator`: of collectives. `dropped`: rows lost before; rows outside the bounds of the contract count too.
        `steps_from`: source of the steps (derive.steps).
        """
        feed = self._feed(topic, "" if communicator is None else hash_text(communicator))
        parts = split_rows(topic, table)
        feed.dropped += dropped + table.rows - sum(map(len, parts))
        feed.steps_from = steps_from or feed.steps_from
        if self.separate_losses and feed.dropped and parts:
            first_ns = int(table["start_ns"][parts[0][0]])
            self._send(feed, None, FeedProgress(progress.now_ns, min(progress.watermark_ns, first_ns)))
        for at, part in enumerate(parts, 1):
            last = at == len(parts)
            # A step is complete when its last row is out: not before the last batch of this call.
            next_start = int(table["start_ns"][parts[at][0]]) if not last else progress.watermark_ns
            before = FeedProgress(progress.now_ns, min(progress.watermark_ns, next_start))
            self._send(feed, table.take(part), progress if last else before)
        if not parts and feed.dropped:
            self._send(feed, None, progress)

    def heartbeat(self, progress: FeedProgress) -> None:
        """Emit an empty batch for each feed that was silent for a second, so that windows downstream can close."""
        for feed in self._feeds.values() if not self.is_silent else ():
            if progress.now_ns - feed.sent_ns >= HEARTBEAT_NS:
                self._send(feed, None, progress)

    def finish(self, now_ns: int, complete_step: int = -1) -> None:
        """Emit the final batch of every feed, which marks it as complete up to `now_ns`."""
        for feed in self._feeds.values():
            self._send(feed, None, FeedProgress(now_ns, now_ns, complete_step))

    def state(self) -> list[list[Any]]:
        """Return what another writer needs to go on with the same feeds, as JSON values."""
        return [[getattr(feed, name) for name in _Feed.__slots__] for feed in self._feeds.values()]

    def restore(self, state: list[list[Any]]) -> None:
        """Go on with the feeds of another writer. Raises TypeError, ValueError for anything but its `state`."""
        feeds = (_Feed(Topic(topic), *rest) for topic, *rest in state)
        self._feeds = {(feed.topic, feed.communicator): feed for feed in feeds}

    def _feed(self, topic: Topic, communicator: str) -> _Feed:
        return self._feeds.setdefault((topic, communicator), _Feed(topic, communicator))

    def _send(self, feed: _Feed, rows: Table | None, progress: FeedProgress) -> None:
        feed.watermark_ns = max(feed.watermark_ns, progress.watermark_ns)
        feed.complete_step = max(feed.complete_step, progress.complete_step)
        header = BatchHeader(
            sequence=feed.sequence,
            dropped_before=feed.dropped,
            closed_ns=progress.now_ns,
            watermark_ns=feed.watermark_ns,
            communicator=feed.communicator,
            complete_step=feed.complete_step,
            steps_from=feed.steps_from,
        )
        batch = make_batch(feed.topic, self.identity, header, rows)
        feed.sequence, feed.dropped, feed.sent_ns = feed.sequence + 1, 0, progress.now_ns
        self._emit(feed.topic, record_key(batch), batch)
