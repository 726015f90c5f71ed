"""Spool target of a replay: one folder per process, as its live producer would write it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from drumline.producers.replay.recording import TimedBatch
from drumline.producers.spool.quota import HostSpools, SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.envelope import IDENTITY
from drumline.schemas.topics import Topic


class SpoolTarget:
    """Writes batches into spools; gpu.process.v1 becomes a spool's identity.

    Attributes:
        queued: rows given to the spools, per topic.
        rows: of those, the rows in the spools or taken by the agent; a full spool evicts the others.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root, self._max_bytes = root, max_bytes
        self._spools: dict[str, SpoolWriter] = {}
        self._host_spools = HostSpools(root)
        self.queued: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()

    @property
    def rows(self) -> Counter[str]:
        """Return the rows that no spool has evicted, per topic."""
        kept = self.queued.copy()
        for spool in self._spools.values():
            kept.subtract(spool.dropped)
        return kept

    def publish(self, timed: TimedBatch, sent_ns: int) -> None:
        """Write one batch into its process's spool."""
        batch, envelope = timed.batch, timed.batch.envelope
        envelope["sent_ns"] = sent_ns
        process, topic = str(envelope["process_id"]), str(batch.topic)
        self.queued[topic] += batch.rows
        self.batches[topic] += 1
        if process not in self._spools:
            identity = envelope if topic == Topic.PROCESS else {name: envelope[name] for name in IDENTITY}
            self._spools[process] = SpoolWriter(
                self._root,
                identity,
                SpoolLimits(max_bytes=self._max_bytes),
                spools=self._host_spools,
            )
        if topic != Topic.PROCESS:
            self._spools[process].append_batch(timed.key, batch)

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    def flush(self) -> None:
        """Close the spools, as if the processes had ended."""
        for spool in self._spools.values():
            spool.close()

    def settle(self) -> None:
        """Close the spools."""
        self.flush()
