"""What the worker says about itself, for whoever waits until everything has been worked off (infra/drain.py)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from drumline.infra.telemetry import metrics
from drumline.streams.core.stage import Stage
from drumline.streams.worker.lag import Lag

log = structlog.get_logger()


def open_windows(stage: Stage) -> int:
    """Results of a stage that are still to be sent, or to be sent again."""
    return int(getattr(stage, "open_windows", 0))


class StatusFile:
    """Nothing but waiting until everything is worked off depends on it: where it cannot be written, the worker goes on.
    That is logged once, until it can be, and counted each time."""

    def __init__(self, path: Path) -> None:
        self._path, self._failing = path, False

    def write(self, status: Mapping[str, Any]) -> None:
        """Replace the file in one step: a reader sees the old or the new, never half."""
        draft = self._path.with_suffix(".new")
        try:
            draft.write_text(json.dumps(status))
            os.replace(draft, self._path)
        except OSError as error:
            metrics.STREAM_RETRIES.labels("status").inc()
            if not self._failing:
                log.warning("status file cannot be written", file=str(self._path), problem=error.strerror)
            self._failing = True
        else:
            self._failing = False


class Status:
    """Of one worker, which has some of `of` partitions of each topic: in its file, and as metrics."""

    def __init__(self, path: Path, of: int, lag: Lag) -> None:
        self._file, self._of, self._lag = StatusFile(path), of, lag

    def say(self, partitions: list[int], still_open: int, unsettled: int, now_ns: int) -> None:
        """`still_open`: see open_windows, of all stages. `unsettled`: messages, apart from ticks."""
        positions = {f"{tp.topic}:{tp.partition}": position for tp, position in self._lag.positions().items()}
        status: dict[str, Any] = {
            "partitions": partitions,
            "of": self._of,
            "open": still_open,
            "unsettled": unsettled,
            "handled": self._lag.count,
            "lag": self._lag.records(),
            "positions": positions,
            "time_ns": now_ns,
        }
        if status["lag"] is not None:
            metrics.STREAM_LAG.set(status["lag"])
        metrics.STREAM_OPEN.set(status["open"])
        metrics.STREAM_UNSETTLED.set(status["unsettled"])
        self._file.write(status)
