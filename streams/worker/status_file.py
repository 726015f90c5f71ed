"""Publish the worker's status: in a file, from which `drain` detects that everything is processed, and as metrics."""

from __future__ import annotations

from pathlib import Path

from drumline.infra.kafka.worker_status import STATUS_FILE, StatusFile, WorkerStatus
from drumline.infra.telemetry import metrics
from drumline.streams.worker.lag import Lag


class StatusReporter:
    """Publishes the status of one worker, which has some of `of` partitions of each topic.

    Owned by `StreamWorker`. `folder`: the worker's working directory.
    """

    def __init__(self, folder: Path, of: int, lag: Lag) -> None:
        self._file, self._of, self._lag = StatusFile(folder / STATUS_FILE), of, lag

    def publish(
        self, partitions: list[int], still_open: int, unsettled: int, now_ns: int, skew_s: float | None
    ) -> None:
        """Publish one status. `still_open`: open windows of all stages. `unsettled`: messages, without ticks.

        `skew_s`: how far `now_ns` is ahead of the broker's clock; None = unknown.
        """
        positions = {f"{tp.topic}:{tp.partition}": position for tp, position in self._lag.positions().items()}
        status: WorkerStatus = {
            "partitions": partitions,
            "of": self._of,
            "open": still_open,
            "unsettled": unsettled,
            "handled": self._lag.count,
            "lag": self._lag.records(),
            "positions": positions,
            "time_ns": now_ns,
            "clock_skew_s": skew_s,
        }
        if status["lag"] is not None:
            metrics.STREAM_LAG.set(status["lag"])
        metrics.STREAM_OPEN.set(status["open"])
        metrics.STREAM_UNSETTLED.set(status["unsettled"])
        self._file.write(status)
