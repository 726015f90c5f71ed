"""What one recorded process gives, on its way into its spool: rows of buffers, rows derived from them, losses."""

from __future__ import annotations

from collections import Counter

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.batches.live import BatchWriter, split_rows
from drumline.producers.decoder.cupti_decode import Decoded
from drumline.producers.derive.nccl import names as nccl
from drumline.producers.identity import Identity
from drumline.producers.ipc import buffer_pool as pool_words
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.producers.ipc.policy import COLLECTIVES
from drumline.producers.live.derivation import IncrementalDerivation
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import Batch, encode
from drumline.schemas.model import model
from drumline.schemas.topics import Topic


class SpoolOutput:
    """`live` derives steps, collectives and ranges. `writer` makes batches, which go into `spool`."""

    def __init__(self, pool: BufferPool, spool: SpoolWriter, identity: Identity) -> None:
        self.spool, self.writer = spool, BatchWriter(identity, self._emit)
        self.live = IncrementalDerivation(self.writer)
        self._pool = pool
        self._refused = self._events_lost = 0
        self._reading = -1

    def take(self, number: int, found: Decoded, now_ns: int) -> None:
        """What a buffer held. Batches of it are counted in the pool: a decoder that is killed leaves it half read."""
        kernels, copies = found.kernels, found.copies
        published = kernels
        if self._pool.words[pool_words.MODE] == COLLECTIVES and kernels.rows:
            published = kernels.take(nccl.is_kernel(kernels.dictionaries["names"])[kernels["name"]])
        before = self._pool.sent(number)
        self._reading = number
        for topic, table in ((Topic.KERNEL, published), (Topic.MEMCPY, copies)):
            parts = split_rows(topic, table) if before else []
            gone = min(before, len(parts))  # sent by a decoder that was killed
            before -= gone
            if gone:
                table = table.take(np.concatenate([parts[0][:0], *parts[gone:]]))
            self.writer.write(topic, table, self.live.watermark(now_ns), now_ns)
        self._reading = -1
        self.live.add(kernels, copies, found.markers, found.payloads, found.launched)

    def report_losses(self, dropped: Counter[Topic], now_ns: int) -> None:
        """Rows that CUPTI or we (`dropped`, emptied here) dropped go into `dropped_before`; CUPTI does not say of what
        kind: kernels, mostly."""
        words = self._pool.words
        total, refused = (words[word] for word in (pool_words.CUPTI_DROPPED, pool_words.REFUSED))
        if refused > self._refused:  # CUPTI got no buffer: it drops what comes now, and says so later
            self._refused = refused  # not REFUSED_SEEN: what a decoder that was killed had not told, we tell
            self.live.lost(now_ns, (words[pool_words.REFUSED_FIRST_NS], words[pool_words.REFUSED_LAST_NS]))
            words[pool_words.REFUSED_SEEN] = refused
        if words[pool_words.FOREIGN] > words[pool_words.FOREIGN_SEEN]:
            words[pool_words.FOREIGN_SEEN] = words[pool_words.FOREIGN]
            self.unread(now_ns, words[pool_words.ANEW_NS])
        if words[pool_words.EVENTS_LOST] > self._events_lost:
            self._events_lost = words[pool_words.EVENTS_LOST]
            self.live.marks_lost(now_ns)
        dropped[Topic.KERNEL] += total - words[pool_words.TOLD]
        words[pool_words.TOLD] = total
        for topic, rows in dropped.items():
            if rows:
                nothing = Table({"start_ns": np.empty(0, np.int64)})
                self.writer.write(topic, nothing, self.live.watermark(now_ns), now_ns, dropped=rows)
                self.live.lost(now_ns)
                dropped[topic] = 0

    def unread(self, now_ns: int, since_ns: int = 0) -> None:
        """A buffer cannot be read, of what the host made since all was last known to be here, or since `since_ns`."""
        self.live.lost(now_ns, (min(since_ns or now_ns, self.live.complete_until_ns or now_ns), now_ns))

    def _emit(self, topic: Topic, key: str, batch: Batch) -> None:
        self.spool.append(str(topic), key, encode(model(topic), batch), batch.rows)
        if self._reading >= 0:
            self._pool.count_sent(self._reading)
