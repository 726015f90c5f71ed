"""A recorded job as the rows that its producers and its agent published, instead of CUPTI's records.

rows.jsonl.xz has a batch a line, ordered by time: topic, envelope, columns. It holds what no trace has: the light
tier's rows and samples of processes. `tests/gpu/keep_recording.py` writes it.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

from drumline.producers.replay.parquet import BadTrace
from drumline.schemas.batch import Batch
from drumline.schemas.columns import filled, fit
from drumline.schemas.errors import Unencodable
from drumline.schemas.model import model

ROWS = "rows.jsonl.xz"
#: For text; 3 % smaller than by the preset alone.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]


def is_published(folder: Path) -> bool:
    """Return whether a folder holds a recording of this kind."""
    return (folder / ROWS).is_file()


def read_published(folder: Path) -> Iterator[tuple[int, Batch]]:
    """Yield (time in ns, batch). Columns that the recording's version did not have get their fill value.

    Raises BadTrace, OSError.
    """
    path = folder / ROWS
    try:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                values = json.loads(line)
                batch = Batch(values["topic"], values["envelope"])
                columns = model(batch.topic).columns
                batch.columns = {
                    column.name: fit(column, values["columns"][column.name], batch.topic)
                    if column.name in values["columns"]
                    else filled(column, batch.rows)
                    for column in columns
                }
                yield int(batch.envelope["sent_ns"]), batch
    except (ValueError, KeyError, TypeError, EOFError, lzma.LZMAError, Unencodable) as error:
        raise BadTrace(f"{path}: {type(error).__name__}: {error}") from None


def write_published(folder: Path, batches: Iterable[Batch]) -> None:
    """Write the rows of a recording, ordered by `sent_ns`."""
    with lzma.open(folder / ROWS, "wt", encoding="utf-8", filters=FILTERS) as file:
        for batch in sorted(batches, key=lambda batch: int(batch.envelope["sent_ns"])):
            columns = {name: column.tolist() for name, column in batch.columns.items()}
            line = {"topic": str(batch.topic), "envelope": batch.envelope, "columns": columns}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
