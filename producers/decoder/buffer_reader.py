"""Completed buffers of one recorded process, and its own marks, as tables; what is lost in reading them is counted."""

from __future__ import annotations

from collections import Counter

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.decoder import cupti_layout
from drumline.producers.decoder.cupti_decode import Decoded, Decoder, UnknownSize, find_records
from drumline.producers.decoder.remote_memory import RemoteMemory
from drumline.producers.derive.steps.steps import API_DOMAIN
from drumline.producers.ipc import buffer_pool as pool_words
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: The dead-end for a kind whose size CUPTI does not tell (the process died before it was asked); ns.
SIZE_NS = 3_000_000_000


class BufferReader:
    """`records`: decoded so far, by kind of table; `bytes`: of buffers read. `dropped`: rows lost, by topic; who tells
    them takes them out. `problems`: short name -> sentence, of the session."""

    def __init__(self, pool: BufferPool, pid: int, problems: dict[str, str]) -> None:
        self.records, self.bytes = Counter[str](), 0
        self.dropped: Counter[Topic] = Counter()
        self._pool, self._problems = pool, problems
        self._decoder = Decoder(RemoteMemory(pid))
        self._stuck_since = 0

    @property
    def unreadable_strings(self) -> int:
        return self._decoder.names.unreadable + self._decoder.labels.unreadable

    def read(self, number: int, now_ns: int) -> Decoded | None:
        """What a buffer holds, up to a record whose size nobody tells; None where it cannot be read. Raises UnknownSize
        where it must wait for the size of a kind of record."""
        words = self._pool.words
        sizes = words[pool_words.SIZES : pool_words.SIZES + pool_words.KINDS].tolist()
        view = self._pool.valid(number)
        data, behind = np.frombuffer(view, np.uint8), 0
        try:
            records = find_records(data, sizes)
        except UnknownSize as unknown:
            if unknown.kind < pool_words.KINDS:  # else nobody can tell
                words[pool_words.WANTED_KIND] = unknown.kind
                self._stuck_since = self._stuck_since or now_ns
                if now_ns - self._stuck_since < SIZE_NS:
                    raise
            self._problems["size"] = f"{unknown}; what is behind it is lost"
            behind = max(1, (len(data) - unknown.at) // 216)
            records = find_records(data[: unknown.at], sizes)
        found: Decoded | None = None
        try:
            found = self._decoder.decode(records, sizes)
            found.invalid["kernels"] += behind
        except Exception as error:
            self._problems["decode"] = f"{type(error).__name__}: {error}"
            copies = records.count(cupti_layout.MEMCPY) + records.count(cupti_layout.MEMSET)
            self.dropped[Topic.KERNEL] += records.count(cupti_layout.KERNEL) + records.unfinished + behind
            self.dropped[Topic.MEMCPY] += copies
        self._stuck_since = 0
        self.bytes += len(view)
        if found is not None:
            self._count(found, sizes)
        return found

    def mark(self, flags: int, number: int, time_ns: int, name: str) -> Table:
        """A step or scope of the API that begins or ends, as a marker; columns as in Activity."""
        labels, domains = self._decoder.labels, self._decoder.domains
        labels.trim()
        columns: dict[str, Array] = {
            "id": np.array([number], np.uint32),
            "time_ns": np.array([time_ns], np.int64),
            "flags": np.array([flags], np.int32),
            "name": np.array([labels.index(name)], np.uint32),
            "domain": np.array([domains.index(API_DOMAIN)], np.uint32),
        }
        return Table(columns, {"names": labels.words, "domains": domains.words})

    def _count(self, found: Decoded, sizes: list[int]) -> None:
        for kind, count in found.unknown.items():
            if kind == cupti_layout.PEER_COPY:
                self.records["peer_copies"] += count
                continue
            name = cupti_layout.LAYOUTS[kind].struct if kind in cupti_layout.LAYOUTS else str(kind)
            self._problems["layout"] = f"records of {sizes[kind]} bytes for {name}: this CUPTI is newer than drumline"
            if kind != cupti_layout.DRIVER:  # no row would have come of it
                self.dropped[Topic.KERNEL if kind == cupti_layout.KERNEL else Topic.MEMCPY] += count
        self.dropped[Topic.KERNEL] += found.invalid["kernels"]
        self.dropped[Topic.MEMCPY] += found.invalid["copies"]
        for name in ("kernels", "copies", "markers", "payloads"):
            self.records[name] += getattr(found, name).rows
        if found.launched.rows:
            self.records["launches"] += found.launched.rows
