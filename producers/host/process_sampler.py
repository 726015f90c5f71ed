"""Sampling of this host's recorded processes, into the agent's own spool."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable

from drumline.infra.telemetry import metrics
from drumline.producers.batching.sample_envelopes import SampleEnvelopes, readings
from drumline.producers.host.host_samples import HostSamples, ProcessSample
from drumline.producers.host.sampling_thread import SamplingThread
from drumline.producers.host.targets import RecordedProcess
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

#: Mean time between two polls at the main threads; s. It varies, so that no job's steps keep time with it.
POLL_S = 0.05


class HostBatches:
    """Makes the batches of one host's samples, with sequences per key under the agent's process id."""

    def __init__(self, process_id: str, host: str) -> None:
        self._envelopes = SampleEnvelopes(process_id, host)

    def batch(self, sample: ProcessSample) -> tuple[str, Batch]:
        """Return (key, batch) of one sample."""
        record, row = sample.process.record, sample.row
        key = str(record["job"])
        envelope = {**self._envelopes.envelope(key, record, row["time_ns"]), "pid": sample.pid}
        return key, Batch(Topic.HOST, envelope, readings(Topic.HOST, row))


class HostSampler(SamplingThread):
    """Samples the recorded processes once a period, and polls them in between.

    `processes` returns those that are alive now. The spool is another's, and closed by it.
    """

    def __init__(
        self,
        spool: SpoolWriter,
        batches: HostBatches,
        processes: Callable[[], Iterable[RecordedProcess]],
        period_s: float,
        samples: HostSamples | None = None,
    ) -> None:
        super().__init__("host", "processes")
        self._spool, self._batches, self._processes, self._period_s = spool, batches, processes, period_s
        self._samples = samples or HostSamples()
        self._due = time.monotonic() + period_s

    def pause_s(self) -> float:
        """Return the time until the next poll; without processes a period."""
        return POLL_S * random.uniform(0.5, 1.5) if self._samples.processes else self._period_s

    def sample(self) -> None:
        """Poll, and append the rows of a period that is over."""
        self._samples.poll()
        if time.monotonic() >= self._due:
            self._due = max(self._due + self._period_s, time.monotonic())
            self._append()

    def close(self) -> None:
        """Close the files of the processes."""
        self._samples.close()

    def _append(self) -> None:
        for sample in self._samples.read(time.time_ns()):
            key, batch = self._batches.batch(sample)
            self._spool.append_batch(key, batch)
        self._samples.follow(self._processes())
        metrics.AGENT_SAMPLED.set(self._samples.processes)
