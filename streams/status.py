"""What the worker says about itself, for whoever waits until everything has been worked off (infra/drain.py)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from drumline.infra import metrics
from drumline.streams.stage import Stage

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
