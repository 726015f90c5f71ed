"""Batches of kernels and copies, and a windows stage with a broker that acknowledges at once or not at all."""

import time

import numpy as np
from support.tables import apply_batch

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.limits import DAY_NS
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.streams.windows.config import SECOND_NS as S
from drumline.streams.windows.config import WindowConfig
from drumline.streams.windows.kernel_frequency import KernelFrequency
from drumline.streams.windows.memcpy_bandwidth import MemcpyBandwidth
from drumline.streams.windows.stage import ProcessWindows

#: The beginning of the day before yesterday: times of rows are compared with the time at which Kafka takes them in.
T0 = (time.time_ns() // DAY_NS - 2) * DAY_NS
CONFIG = WindowConfig(grace_ns=10 * S)


def kernels(rows, watermark=0, process="p", sent=None, run="r"):
    """rows: (start s after T0, duration ns, name)."""
    texts = sorted({name for _, _, name in rows})
    n = len(rows)
    columns = {
        "name": np.array([texts.index(name) for _, _, name in rows], np.uint32),
        "start_ns": np.array([T0 + round(at * S) for at, _, _ in rows], np.int64),
        "duration_ns": np.array([duration for _, duration, _ in rows], np.uint64),
        **{f"grid_{axis}": np.full(n, 2, np.int32) for axis in "xyz"},
        **{f"block_{axis}": np.full(n, size, np.int32) for axis, size in zip("xyz", (32, 2, 1), strict=True)},
    }
    return Batch(Topic.KERNEL, _envelope(n, watermark, process, sent, run, names=texts), columns)


def copies(rows, watermark=0, process="p"):
    """rows: (start s after T0, duration ns, bytes, kind, src, dst)."""
    columns = {
        "start_ns": np.array([T0 + round(row[0] * S) for row in rows], np.int64),
        "duration_ns": np.array([row[1] for row in rows], np.uint64),
        "bytes": np.array([row[2] for row in rows], np.uint64),
        **{
            name: np.array([row[i] for row in rows], np.uint8)
            for i, name in ((3, "kind"), (4, "src_kind"), (5, "dst_kind"))
        },
    }
    return Batch(Topic.MEMCPY, _envelope(len(rows), watermark, process, None, "r"), columns)


def _envelope(rows, watermark, process, sent, run, **more):
    identity = {"job": "j", "run": run, "rank": 3, "local_rank": 1, "world_size": 4, "host": "h", "gpu_uuid": "g"}
    at = T0 + round(watermark * S) if watermark else 0
    sent_ns = T0 + 100 * S if sent is None else sent
    return {**identity, "process_id": process, "rows": rows, "watermark_ns": at, "sent_ns": sent_ns, **more}


class Lab:
    """Runs a stage on a dict. `results`: (process, window start s after T0) -> the last acknowledged batch."""

    def __init__(self, reducer=None, config=CONFIG, store=None):
        self.reducer, self.config = reducer or KernelFrequency(), config
        self.store = {} if store is None else store
        self.offset, self.now, self.sent, self.results = -1, T0 + 100 * S, [], {}
        self.sequences = {}
        self.restart()

    def restart(self):
        self.stage = ProcessWindows(self.store, self.config, self.reducer)

    def feed(self, batch, offset=None, acknowledge=True):
        self.offset = self.offset + 1 if offset is None else offset
        if "sequence" not in batch.envelope:
            process = batch.envelope["process_id"]
            batch.envelope["sequence"] = self.sequences[process] = self.sequences.get(process, -1) + 1
        return self.take(apply_batch(self.stage, batch, self.offset, self.now), acknowledge)

    def tick(self, seconds=1.0, caught_up=True, acknowledge=True):
        self.now += round(seconds * S)
        return self.take(self.stage.on_tick(self.now, caught_up), acknowledge)

    def silence(self):
        self.tick()
        return self.tick(self.config.idle_ns / S + 1)

    def take(self, batches, acknowledge=True):
        for batch in batches if acknowledge else ():
            self.acknowledge(batch)
        return batches

    def acknowledge(self, batch):
        assert Codec().decode(batch.topic, Codec().encode(batch)).rows == batch.rows
        self.sent.append(batch)
        if batch.rows:
            e = batch.envelope
            self.results[(e["process_id"], (e["window_start_ns"] - T0) / S)] = batch
        self.stage.mark_sent(batch)

    def table(self, column="launches"):
        """Return (process, window) -> {kernel: value} of the last revisions."""
        return {
            where: dict(zip(b.envelope["names"], b.columns[column].tolist(), strict=True))
            for where, b in self.results.items()
        }

    def audit(self, process="p"):
        """Return the rows in windows that do not overlap, and the rows counted as late."""
        column = "launches" if isinstance(self.reducer, KernelFrequency) else "copies"
        published = [b for (p, _), b in self.results.items() if p == process]
        rows = sum(
            int(b.columns[column].sum())
            for b in published
            if b.envelope["window_start_ns"] % self.config.window_ns == 0
        )
        late = max((b.envelope["late_rows"] for b in self.sent if b.envelope["process_id"] == process), default=0)
        return rows, late


__all__ = [  # glossary: Python's name
    "CONFIG",
    "T0",
    "KernelFrequency",
    "Lab",
    "MemcpyBandwidth",
    "S",
    "copies",
    "kernels",
]
