"""Reads JSON, and pickles of plain values, from anywhere: nothing in a file is executed, and memory is bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from drumline.producers.foreign.dumps.restricted_pickle import BadPickle, unpickle
from drumline.producers.ras.report import MOST_VALUES, json_values

#: Of a file, in bytes; dumps of 20,000 entries have 20 to 60 MB.
MOST_BYTES = 256 << 20
PICKLE = b"\x80"


class BadDump(Exception):
    """A file cannot be read as a dump; the text names the file and the reason."""


def read_values(path: Path) -> dict[str, Any]:
    """Return the mapping that a file holds as JSON or as a pickle. Raises BadDump."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadDump(f"{path}: cannot be read ({error.strerror})") from None
    if not data:
        raise BadDump(f"{path}: the file is empty; the process may have ended while it wrote it")
    if len(data) > MOST_BYTES:
        raise BadDump(f"{path}: larger than {MOST_BYTES >> 20} MiB; make it with a smaller TORCH_FR_BUFFER_SIZE")
    try:
        values = unpickle(data) if data.startswith(PICKLE) else json_values(data, MOST_VALUES)
    except BadPickle as error:
        raise BadDump(f"{path}: {error}") from None
    except RecursionError:
        raise BadDump(f"{path}: values are nested too deeply for a dump") from None
    except json.JSONDecodeError as error:
        raise BadDump(f"{path}: no valid JSON at line {error.lineno}, column {error.colno} ({error.msg})") from None
    except ValueError as error:
        raise BadDump(f"{path}: no valid JSON ({error})") from None
    if not isinstance(values, dict):
        raise BadDump(f"{path}: holds a {type(values).__name__} and not a mapping, so it is no dump")
    return values
