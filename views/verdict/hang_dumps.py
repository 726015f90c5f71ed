"""Dumps of a job that hangs, which have no times of work: what each rank waits for instead of a verdict on steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from drumline.producers.foreign.recognise import Format
from drumline.producers.replay.parquet import BadTrace

#: Format -> its reader: takes the dumps of all ranks, returns the lines to print. Raises BadTrace.
HANG_READERS: Mapping[Format, Callable[[Sequence[Path]], list[str]]] = {}


def explain_dumps(files: Sequence[Path], form: Format) -> list[str]:
    """Return the lines that explain a hang. Raises BadTrace where this version has no reader for the format."""
    if form not in HANG_READERS:
        raise BadTrace(f"{files[0]}: a dump of a hang ({form.replace('_', ' ')}), which this version does not read yet")
    return HANG_READERS[form](files)
