"""Sampling of the TCP connections of this host's recorded processes, into the agent's own spool."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from drumline.infra.telemetry import metrics
from drumline.producers.batching.sample_envelopes import SampleEnvelopes, encoded
from drumline.producers.host.sampling_thread import SamplingThread
from drumline.producers.host.targets import RecordedProcess
from drumline.producers.network.connection_rates import ConnectionRates, Row
from drumline.producers.network.connections import read_connections
from drumline.producers.network.interfaces import read_interfaces
from drumline.producers.network.socket_owners import SocketOwners
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.batch import Batch
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Length of a row; s.
PERIOD_S = 1.0
#: Polls of the kernel's rate for each row, of which the median is stated: one may meet the end of a burst.
POLLS = 5
#: Part of the time that polls may take, 10 us a connection, and scans of files. Where one poll takes more, there is one
#: a period, or one in several.
MOST_SHARE = 0.05
#: Time between two scans of the files of processes, which are many; connections are opened at the start. s.
FILES_S = 5.0


class ConnectionBatches:
    """Makes the batches of one host's connections, under the agent's process id."""

    def __init__(self, process_id: str, host: str) -> None:
        self._envelopes = SampleEnvelopes(process_id, host)

    def batch(self, record: Mapping[str, object], rows: Sequence[Row]) -> tuple[str, Batch]:
        """Return (key, batch) of a process's rows. `record`: fields of its gpu.process.v1 record."""
        key, last = str(record["job"]), rows[0]
        envelope = self._envelopes.envelope(key, record, int(last["start_ns"]), len(rows))
        sent_ns = int(last["start_ns"]) + int(last["duration_ns"])
        names = {column.name: "" if column.dictionary else 0 for column in model(Topic.TRANSFER).columns}
        columns, dictionaries = encoded(Topic.TRANSFER, [{**names, **row} for row in rows])
        return key, Batch(Topic.TRANSFER, envelope | dictionaries | {"sent_ns": sent_ns}, columns)


class ConnectionSampler(SamplingThread):
    """Samples connections once a period, and polls them in between.

    `processes` returns those that are alive now. The spool is another's, and closed by it.
    """

    def __init__(
        self,
        spool: SpoolWriter,
        batches: ConnectionBatches,
        processes: Callable[[], Iterable[RecordedProcess]],
        period_s: float = PERIOD_S,
    ) -> None:
        super().__init__("connections", "connections")
        self._spool, self._batches, self._processes, self._period_s = spool, batches, processes, period_s
        self._owners, self._rates, self._interfaces = SocketOwners(), ConnectionRates(), dict[str, str]()
        self._polls, self._files_due, self._read_due, self._took_s = 0, 0.0, 0.0, 0.0

    def pause_s(self) -> float:
        """Return the time between two polls."""
        return self._period_s / POLLS

    def sample(self) -> None:
        """Poll the kernel, and append the rows of a period that is over; less often where that takes long."""
        self._polls = (self._polls + 1) % POLLS
        is_row_due = not self._polls
        if is_row_due and (begin := time.monotonic()) >= self._files_due:
            self._owners.follow(self._processes())
            self._interfaces = read_interfaces() if self._owners.owners else {}
            metrics.AGENT_CONNECTIONS_UNSEEN.set(self._owners.left_out)
            self._files_due = (end := time.monotonic()) + max(FILES_S, (end - begin) / MOST_SHARE)
        wanted = self._owners.owners and (is_row_due or self._took_s <= MOST_SHARE * self.pause_s())
        if wanted and (begin := time.monotonic()) >= self._read_due:
            self._rates.refresh(read_connections(self._owners.owners))
            self._took_s = (end := time.monotonic()) - begin
            self._read_due = end + self._took_s / MOST_SHARE
            if is_row_due:
                self._publish(time.time_ns())

    def _publish(self, now_ns: int) -> None:
        rows, left_out = self._rates.take(now_ns, self._owners.owners, self._interfaces)
        metrics.AGENT_CONNECTIONS_LEFT_OUT.inc(left_out)
        for name, of_process in rows.items():
            self._spool.append_batch(*self._batches.batch(self._owners.processes[name].record, of_process))
