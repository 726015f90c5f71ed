"""Sampling of this host's links, into the agent's own spool."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import structlog

from drumline.producers.batching.sample_envelopes import SampleEnvelopes, encoded, in_bounds
from drumline.producers.network.link_samples import LinkSample, LinkSamples
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import Batch
from drumline.schemas.keys import record_key
from drumline.schemas.topics import Topic

log = structlog.get_logger()


class LinkBatches:
    """Makes the batches of one host's links, under the agent's process id."""

    def __init__(self, process_id: str, host: str) -> None:
        self._envelopes, self._host = SampleEnvelopes(process_id, host), host

    def batch(self, samples: Sequence[LinkSample]) -> tuple[str, Batch]:
        """Return (key, batch) with a row for each link."""
        time_ns = min(sample.numbers["time_ns"] for sample in samples)
        envelope = self._envelopes.envelope(self._host, {}, time_ns, len(samples))
        rows = [{**sample.texts, **in_bounds(Topic.NETWORK, sample.numbers)} for sample in samples]
        columns, dictionaries = encoded(Topic.NETWORK, rows)
        batch = Batch(Topic.NETWORK, envelope | dictionaries, columns)
        return record_key(batch), batch


class LinkSampler(threading.Thread):
    """Samples the links once a period; `drumline agent` starts it and calls `stop`. The spool is closed elsewhere."""

    def __init__(self, spool: SpoolWriter, batches: LinkBatches, samples: LinkSamples, period_s: float) -> None:
        super().__init__(name="network", daemon=True)
        self._spool, self._batches, self._samples, self._period_s = spool, batches, samples, period_s
        self._halt = threading.Event()

    def stop(self) -> None:
        """Stop the thread."""
        self._halt.set()
        self.join(5.0)

    def run(self) -> None:
        """Sample until `stop`."""
        problem = ""
        while not self._halt.is_set():
            try:
                if samples := list(self._samples.read(time.time_ns())):
                    self._spool.append_batch(*self._batches.batch(samples))
            except Exception as error:  # nothing that sysfs shows must end the sampling of a host
                if (text := f"{type(error).__name__}: {error}") != problem:
                    problem = text
                    log.warning("links cannot be sampled now", problem=text)
            self._halt.wait(self._period_s)
