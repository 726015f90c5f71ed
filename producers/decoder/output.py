"""Output of one recorded process into its spool: decoded rows, rows derived from them, and losses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.batching.live import BatchWriter, FeedProgress, split_rows
from drumline.producers.decoder.cupti_decode import Decoded
from drumline.producers.decoder.launch_counts import LaunchCounts
from drumline.producers.decoder.pc_samples import PcSamples
from drumline.producers.decoder.python_samples import PythonSamples
from drumline.producers.decoder.remote_memory import RemoteMemory
from drumline.producers.identity import Identity
from drumline.producers.ipc.buffer_pool import BufferPool, Header
from drumline.producers.live_matching.derivation import IncrementalDerivation
from drumline.producers.live_matching.launch_rows import KEPT_NS, LaunchRows
from drumline.producers.live_matching.scopes import ANY_THREAD
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import Batch
from drumline.schemas.topics import KEPT_TOPICS, Topic


class SpoolOutput:
    """Writes the rows of one process to its spool.

    Owned by Session, in the decoder's only thread. Writing to the spool may block on the disk.

    `spool`: takes the batches. `writer`: makes them. `live`: derives steps, collectives and ranges. `launches`: of deep
    windows. `samples`: of Python, for those. `pc_samples`: of the GPU. `counted`: launches without records. `keeps`:
    kernels, copies and ranges stay on the host.
    """

    def __init__(self, pool: BufferPool, spool: SpoolWriter, identity: Identity, memory: RemoteMemory) -> None:
        self.spool, self.writer = spool, BatchWriter(identity, self._emit)
        self.live = IncrementalDerivation(self.writer)
        self.samples, self.pc_samples = PythonSamples(), PcSamples(memory)
        self.counted, self._keeps = LaunchCounts(pool), False
        self.launches = LaunchRows(self.writer, self.samples.before)
        self._pool = pool
        self._denied = self._events_lost = 0
        self._reading = -1

    @property
    def keeps(self) -> bool:
        """Return whether kernels, copies and ranges stay on the host."""
        return self._keeps

    @keeps.setter
    def keeps(self, keeps: bool) -> None:
        self._keeps = self.writer.separate_losses = keeps

    def take(self, number: int, decoded: Decoded, now_ns: int) -> None:
        """Publish the rows of buffer `number`, and derive from them.

        Sent batches are counted in the pool: a killed decoder leaves the buffer half read to the next.
        """
        kernels, copies = decoded.kernels, decoded.copies
        before = self._pool.sent(number)
        self._reading = number
        for topic, table in ((Topic.KERNEL, kernels), (Topic.MEMCPY, copies)):
            parts = split_rows(topic, table) if before else []
            sent = min(before, len(parts))  # by a decoder that was killed
            before -= sent
            if sent:
                table = table.take(np.concatenate([parts[0][:0], *parts[sent:]]))
            self.writer.write(topic, table, FeedProgress(now_ns, self.live.watermark(now_ns)))
        self._reading = -1
        self.live.add(kernels, copies, decoded.markers, decoded.payloads, decoded.launched)
        if self.launches.wants(now_ns):
            self.launches.scopes.marks(_marks(decoded.markers, decoded.marker_threads.tolist()))
            self.launches.add(decoded.launched, kernels, copies)

    def mark(self, marker: Table) -> None:
        """Take a mark of the API, which holds for all threads; columns as in Activity."""
        self.live.add(Table({}), Table({}), marker, Table({}))
        self.launches.scopes.marks(_marks(marker, [ANY_THREAD]))

    def advance_launches(self, now_ns: int, complete_until_ns: int, final: bool = False) -> None:
        """Publish the launches of a deep window that are complete."""
        self.launches.advance(now_ns, complete_until_ns, final)
        self.samples.forget(now_ns - KEPT_NS)

    def advance_pc_samples(self, now_ns: int, final: bool = False) -> None:
        """Publish the samples of the GPU that span a second, or all that are left."""
        if (table := self.pc_samples.rows(final)) is not None:
            self.writer.write(Topic.STALL, table, FeedProgress(now_ns, int(table["start_ns"][0])))

    def advance_counts(self, now_ns: int, final: bool = False) -> None:
        """Publish what was counted of launches in the interval that has ended, or all that is left."""
        if self.counted.is_due(now_ns) or (final and self.counted.is_used):
            table, totals = self.counted.take(now_ns)
            if table is not None:
                self.writer.write(Topic.LAUNCH_COUNT, table, FeedProgress(now_ns, now_ns))
            self.counted.note(totals, now_ns)

    def report_losses(self, dropped: Counter[Topic], now_ns: int) -> None:
        """Report dropped rows in `dropped_before`, and mark the time around them as lost for the derivation.

        `dropped`: rows lost in reading, by topic; emptied. Records that CUPTI dropped count as kernels, as most are:
        it does not state their kind.
        """
        header = self._pool.header
        total, denied = header[Header.CUPTI_DROPPED], header[Header.DENIED]
        if denied > self._denied:  # CUPTI got no buffer: it drops records now and counts them later
            self._denied = denied  # not DENIED_SEEN: a killed decoder may have left some unreported
            self.live.lost(now_ns, (header[Header.DENIED_FIRST_NS], header[Header.DENIED_LAST_NS]))
            header[Header.DENIED_SEEN] = denied
        if header[Header.FOREIGN] > header[Header.FOREIGN_SEEN]:
            header[Header.FOREIGN_SEEN] = header[Header.FOREIGN]
            self.unread(now_ns, header[Header.REGAINED_NS])
        if header[Header.EVENTS_LOST] > self._events_lost:
            self._events_lost = header[Header.EVENTS_LOST]
            self.live.marks_lost(now_ns)
        dropped[Topic.KERNEL] += total - header[Header.DROPPED_REPORTED]
        header[Header.DROPPED_REPORTED] = total
        for topic, rows in dropped.items():
            if rows:
                nothing = Table({"start_ns": np.empty(0, np.int64)})
                progress = FeedProgress(now_ns, self.live.watermark(now_ns))
                self.writer.write(topic, nothing, progress, dropped=rows)
                self.live.lost(now_ns)
                dropped[topic] = 0

    def unread(self, now_ns: int, since_ns: int = 0) -> None:
        """Mark time as lost for an unreadable buffer: from `since_ns`, or from the last time known to be complete."""
        self.live.lost(now_ns, (min(since_ns or now_ns, self.live.complete_until_ns or now_ns), now_ns))

    def _emit(self, topic: Topic, key: str, batch: Batch) -> None:
        # Losses leave the host, in batches without rows: the worker makes no window of those.
        is_loss = not batch.rows and batch.envelope.get("dropped_before", 0) > 0
        self.spool.append_batch(key, batch, kept=self.keeps and topic in KEPT_TOPICS and not is_loss)
        if self._reading >= 0 and batch.rows:
            self._pool.count_sent(self._reading)


def _marks(markers: Table, threads: Sequence[int]) -> Iterator[tuple[int, int, int, int, str]]:
    """Yield (thread, time, flags, id, name) of markers."""
    names = markers.dictionaries["names"] if markers.rows else ()
    for thread, time_ns, flags, number, name in zip(
        threads, *(markers[column].tolist() for column in ("time_ns", "flags", "id", "name")), strict=True
    ):
        yield thread, time_ns, flags, number, names[name]
