"""Paths of data that is installed with drumline."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

#: The recorded job of `drumline demo`: Parquet tables and manifest.json (producers/replay/trace.py reads them).
DEMO_RECORDING = Path(str(resources.files("drumline.infra") / "demo" / "ddp-gpu-bound"))
