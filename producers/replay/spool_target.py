"""A replay's way into a spool instead of Kafka: one folder per process, as its live producer would write it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from drumline.producers.replay.recording import Outgoing
from drumline.producers.spool.quota import HostSpools
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import encode
from drumline.schemas.model import IDENTITY, model
from drumline.schemas.topics import Topic


class SpoolTarget:
    """`handed_over`: rows given to the spools, per topic. `rows`: of those, what is in them or was taken by the agent;
    the others were thrown away because a spool was full. gpu.process.v1 becomes a spool's identity."""

    def __init__(self, root: Path, max_bytes: int, segment_s: float = 30.0) -> None:
        self._root, self._max_bytes, self._segment_s = root, max_bytes, segment_s
        self._spools: dict[str, SpoolWriter] = {}
        self._all = HostSpools(root)
        self.handed_over: Counter[str] = Counter()
        self.batches: Counter[str] = Counter()

    @property
    def rows(self) -> Counter[str]:
        kept = self.handed_over.copy()
        for spool in self._spools.values():
            kept.subtract(spool.dropped)
        return kept

    def publish(self, outgoing: Outgoing, sent_ns: int) -> None:
        """Write one batch into its process's spool."""
        batch, envelope = outgoing.batch, outgoing.batch.envelope
        envelope["sent_ns"] = sent_ns
        process, topic = str(envelope["process_id"]), str(batch.topic)
        self.handed_over[topic] += batch.rows
        self.batches[topic] += 1
        if process not in self._spools:
            who = envelope if topic == Topic.PROCESS else {name: envelope[name] for name in IDENTITY}
            self._spools[process] = SpoolWriter(
                self._root, who, max_bytes=self._max_bytes, segment_s=self._segment_s, spools=self._all
            )
        if topic != Topic.PROCESS:
            self._spools[process].append(topic, outgoing.key, encode(model(topic), batch), batch.rows)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def flush(self) -> None:
        """The processes have ended."""
        for spool in self._spools.values():
            spool.close()

    def settle(self) -> None:
        self.flush()
