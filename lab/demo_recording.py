"""Path of the recorded job that is installed with drumline."""

from __future__ import annotations

from pathlib import Path

#: The recorded job of `drumline demo`: Parquet tables and manifest.json (producers/replay/trace.py reads them).
DEMO_RECORDING = Path(__file__).parent / "demo" / "ddp-gpu-bound"
