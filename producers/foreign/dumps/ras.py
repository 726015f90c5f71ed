"""Reads a file with what `ncclras -f json` printed of a job."""

from __future__ import annotations

from pathlib import Path

from drumline.producers.foreign.dumps.bounded_values import BadDump, read_values
from drumline.producers.ras.report import RasReport, ras_report


def read_ras(path: Path) -> RasReport:
    """Return what RAS printed about a job. Raises BadDump with the reason for a file that is not its answer."""
    try:
        return ras_report(read_values(path))
    except ValueError as error:
        raise BadDump(f"{path}: {error}") from None
