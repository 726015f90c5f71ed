"""Define the status files of stream workers: the workers write them, `drain` and the commands read them.

Every worker of an app on this machine has a folder of its own under `workers_dir`, with the file STATUS_FILE.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry import metrics

log = structlog.get_logger()
STATUS_FILE = "status.json"
#: An older status is that of a worker that has ended; s.
FRESH_S = 5.0


class WorkerStatus(TypedDict):
    """Describes one worker at one moment; written about once a second.

    `partitions`: numbers that the worker has, `of` so many. `open`: open windows of all stages. `unsettled`: messages
    in flight, without ticks. `handled`: records applied since the start. `lag`: records not applied yet, None while
    unknown. `positions`: "topic:partition" -> offset of the next record to apply, None while unknown. `time_ns`: when
    the status was written, by the wall clock. `clock_skew_s`: how far that is ahead of the broker's, or None.
    """

    partitions: list[int]
    of: int
    open: int
    unsettled: int
    handled: int
    lag: int | None
    positions: Mapping[str, int | None]
    time_ns: int
    clock_skew_s: float | None


def workers_dir(settings: Settings) -> Path:
    """Return the folder of this app's stream workers on this machine."""
    base = settings.stream.data_dir or settings.local.state / "stream"
    return base / settings.stream.app_id


def read_statuses(settings: Settings, since_ns: int) -> dict[str, WorkerStatus]:
    """Return the statuses of this app's running workers that were written after `since_ns`, by worker."""
    statuses: dict[str, WorkerStatus] = {}
    for path in sorted(workers_dir(settings).glob(f"*/{STATUS_FILE}")):
        try:
            status: WorkerStatus = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if time.time_ns() - status["time_ns"] < FRESH_S * 1e9 and status["time_ns"] > since_ns:
            statuses[path.parent.name] = status
    return statuses


class StatusFile:
    """Writes the status file of one worker.

    Where it cannot be written, the worker continues: only `drain` depends on it. The failure is logged once, until a
    write succeeds, and counted each time.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._failing = path, False

    def write(self, status: WorkerStatus) -> None:
        """Replace the file in one step, so that a reader gets the old or the new one."""
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
