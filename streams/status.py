"""What the worker says about itself, for whoever waits until everything has been worked off (infra/drain.py)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drumline.streams.stage import Stage


def open_windows(stage: Stage) -> int:
    """Results of a stage that are still to be sent, or to be sent again."""
    return int(getattr(stage, "open_windows", 0))


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Replace the file in one step: a reader sees the old or the new, never half."""
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(status))
    os.replace(draft, path)
