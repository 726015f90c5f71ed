"""Sampling of this host's links, into the agent's own spool."""

from __future__ import annotations

import time
from collections.abc import Sequence

from drumline.producers.batching.sample_envelopes import SampleEnvelopes, encoded, in_bounds
from drumline.producers.host.sampling_thread import SamplingThread
from drumline.producers.network.link_samples import LinkSample, LinkSamples
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import Batch
from drumline.schemas.keys import record_key
from drumline.schemas.topics import Topic


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


class LinkSampler(SamplingThread):
    """Samples the links once a period, at once for the first time. The spool is another's, and closed by it."""

    def __init__(self, spool: SpoolWriter, batches: LinkBatches, samples: LinkSamples, period_s: float) -> None:
        super().__init__("network", "links")
        self._spool, self._batches, self._samples, self._period_s = spool, batches, samples, period_s
        self._pause_s = 0.0

    def pause_s(self) -> float:
        """Return the period; 0 at the begin."""
        pause_s, self._pause_s = self._pause_s, self._period_s
        return pause_s

    def sample(self) -> None:
        """Read the links, and append their rows."""
        if samples := list(self._samples.read(time.time_ns())):
            self._spool.append_batch(*self._batches.batch(samples))
