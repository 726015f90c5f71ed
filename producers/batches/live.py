"""Batches of one live process: rows in, envelopes with sequence, losses and watermark out. A heartbeat where nothing
is sent, so that windows downstream can close."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from drumline.producers.activity.table import Table, compacted
from drumline.producers.batches.cuts import HEARTBEAT_NS, MAX_ROWS
from drumline.producers.batches.recorded import BY_JOB
from drumline.producers.derive.nccl.names import hash_text
from drumline.producers.identity import Identity
from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Of a batch as Avro, a tenth less than Kafka's clients and topics let through: names of kernels may have thousands of
#: bytes. _LENGTH: of a word's length in Avro.
MOST_BYTES = 900_000
_LENGTH = 3


@dataclass(slots=True)
class _Feed:
    """One (topic, key) of the process: what the next batch's envelope continues."""

    topic: Topic
    key: str
    communicator: str
    sequence: int = 0
    dropped: int = 0
    sent_ns: int = 0
    watermark_ns: int = 0
    complete_step: int = -1
    steps_from: str = ""


def cut(topic: Topic, table: Table) -> list[Array]:
    """Rows of a table, by start, as many at a time as go into one batch: MAX_ROWS, and MOST_BYTES with the words in
    them. What is left of some batches is cut as the others were."""
    order, parts, low = np.argsort(table["start_ns"], kind="stable"), [], 0
    each = sum(np.dtype(column.dtype).itemsize for column in model(topic).columns)
    while low < table.rows:
        part = order[low : low + MAX_ROWS]
        size = np.full(len(part), each, np.int64)
        for column in model(topic).columns:
            if column.dictionary:
                used, first = np.unique(table[column.name][part], return_index=True)
                words = table.dictionaries[column.dictionary]
                size[first] += [len(words[i].encode()) + _LENGTH for i in used.tolist()]
        part = part[: max(1, int(np.searchsorted(np.cumsum(size), MOST_BYTES, side="right")))]
        parts.append(part)
        low += len(part)
    return parts


class Outbox:
    """`emit(topic, key, batch)` takes what is due. Watermarks and complete steps never fall. Times are ns."""

    def __init__(self, identity: Identity, emit: Callable[[Topic, str, Batch], None]) -> None:
        self.identity = identity
        self._emit = emit
        self._feeds: dict[tuple[Topic, str], _Feed] = {}

    def put(
        self,
        topic: Topic,
        table: Table,
        watermark_ns: int,
        now_ns: int,
        *,
        communicator: int | None = None,
        complete_step: int = -1,
        dropped: int = 0,
        steps_from: str = "",
    ) -> None:
        """Send rows (columns of `topic`, others are ignored), by start, in batches as `cut` makes them.

        `watermark_ns`: no later row starts before it. `communicator`: of collectives. `dropped`: rows lost before.
        `steps_from`: of steps, see steps.py.
        """
        feed = self._feed(topic, "" if communicator is None else hash_text(communicator))
        feed.dropped += dropped
        feed.steps_from = steps_from or feed.steps_from
        parts = cut(topic, table)
        for at, part in enumerate(parts, 1):
            last = at == len(parts)
            next_start = watermark_ns if last else int(table["start_ns"][parts[at][0]])
            # A step is complete when its last row is out: not before the last batch of this round.
            self._send(feed, table.take(part), min(watermark_ns, next_start), now_ns, complete_step if last else -1)
        if table.rows == 0 and feed.dropped:
            self._send(feed, None, watermark_ns, now_ns, complete_step)

    def beat(self, now_ns: int, watermark_ns: int, complete_step: int) -> None:
        """An empty batch for every feed that sent nothing for a second."""
        for feed in self._feeds.values():
            if now_ns - feed.sent_ns >= HEARTBEAT_NS:
                self._send(feed, None, watermark_ns, now_ns, complete_step)

    def finish(self, now_ns: int, complete_step: int = -1) -> None:
        """The last word of every feed: nothing comes any more."""
        for feed in self._feeds.values():
            self._send(feed, None, now_ns, now_ns, complete_step)

    def _feed(self, topic: Topic, communicator: str) -> _Feed:
        who = self.identity
        key = f"{who.job}:{communicator}" if communicator else who.job if topic in BY_JOB else who.process_id
        return self._feeds.setdefault((topic, key), _Feed(topic, key, communicator))

    def _send(self, feed: _Feed, rows: Table | None, watermark_ns: int, now_ns: int, complete_step: int) -> None:
        feed.watermark_ns = max(feed.watermark_ns, watermark_ns)
        feed.complete_step = max(feed.complete_step, complete_step)
        envelope: dict[str, Any] = {
            **self.identity.envelope(),
            "sequence": feed.sequence,
            "dropped_before": feed.dropped,
            "rows": rows.rows if rows else 0,
            "base_time_ns": int(rows["start_ns"][0]) if rows and rows.rows else now_ns,
            "watermark_ns": feed.watermark_ns,
            "sent_ns": now_ns,
        }
        if feed.communicator:
            envelope["communicator"] = feed.communicator
        if feed.topic in (Topic.STEP, Topic.COLLECTIVE):
            envelope["complete_step"] = feed.complete_step
        if feed.topic is Topic.STEP:
            envelope["steps_from"] = feed.steps_from
        columns: dict[str, Array] = {}
        for column in model(feed.topic).columns if rows else ():
            assert rows is not None
            values = rows[column.name].astype(column.dtype, copy=False)
            if column.dictionary:
                values, envelope[column.dictionary] = compacted(values, rows.dictionaries[column.dictionary])
            columns[column.name] = values
        feed.sequence, feed.dropped, feed.sent_ns = feed.sequence + 1, 0, now_ns
        self._emit(feed.topic, feed.key, Batch(feed.topic, envelope, columns))
