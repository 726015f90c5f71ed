"""Reading an operation table: a Parquet file with a row per operation, and the layout of the job beside it.

Columns: step, rank, stage, dp_rank (integers), optype (text), start_ts and duration (seconds). ByteDance-Seed's
StragglerAnalysis publishes such tables. The layout is a text file of lines `name: number`, with dp_size and pp_size.
Rows are numbered from 0 in messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from drumline.producers.replay.operation_table.kinds import KINDS
from drumline.producers.replay.parquet import BadTrace
from drumline.schemas.columns import Array

#: Columns of whole numbers, and of seconds.
WHOLE, SECONDS = ("step", "rank", "stage", "dp_rank"), ("start_ts", "duration")
TYPE = "optype"
TABLES, LAYOUT_SUFFIXES = "trace*.parquet", (".yaml", ".yml")
#: A time of a table, and a size of a layout, is no larger: int64 ns must hold a job's steps one after the other.
MAX_SECONDS, MAX_SIZE = 1e6, 1 << 20


@dataclass(frozen=True)
class OperationTable:
    """Holds the rows of a table, unchanged and in its order.

    Attributes:
        path: of the table, for messages.
        columns: step, rank, stage, dp_rank: int64; start_ts, duration: float64, seconds.
        types: optype of each row, as an index into `type_names`.
        sizes: of the layout; dp_size, pp_size, tp_size and vpp_size are set.
    """

    path: Path
    columns: Mapping[str, Array]
    types: Array
    type_names: tuple[str, ...]
    sizes: Mapping[str, int]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def of_type(self, name: str) -> Array:
        """Return which rows are of a type: bool."""
        return np.asarray(self.types == (self.type_names.index(name) if name in self.type_names else -1))


def find_table(path: Path) -> Path | None:
    """Return the operation table that `path` is, or that a folder without a manifest holds; None for other input.

    Raises BadTrace for a folder that holds several.
    """
    if path.is_file() and path.suffix == ".parquet":
        return path
    if not path.is_dir() or (path / "manifest.json").exists():
        return None
    tables = sorted(path.glob(TABLES))
    if len(tables) > 1:
        raise BadTrace(f"{path}: {len(tables)} operation tables, read each: {', '.join(t.name for t in tables)}")
    return tables[0] if tables else None


def read_table(path: Path) -> OperationTable:
    """Read a table and the layout beside it: meta-X.yaml of trace-X.parquet. Raises BadTrace with file, column, row."""
    sizes = read_layout(_layout_path(path))
    try:
        file = pq.ParquetFile(path)
        names = (*WHOLE, *SECONDS, TYPE)
        if missing := sorted(set(names) - set(file.schema_arrow.names)):
            raise BadTrace(f"{path}: columns {', '.join(missing)} are missing")
        table = file.read(columns=list(names))
    except (pa.ArrowException, OSError) as error:
        raise BadTrace(f"{path}: {error}") from None
    if not table.num_rows:
        raise BadTrace(f"{path}: no rows")
    for name in names:
        if table[name].null_count:
            _fail(path, name, np.asarray(pc.is_null(table[name])), "is empty")
    columns = {name: _numbers(path, table, name) for name in (*WHOLE, *SECONDS)}
    types, type_names = _types(path, table)
    for name, limit in (("stage", sizes["pp_size"]), ("dp_rank", sizes["dp_size"])):
        _fail(path, name, columns[name] >= limit, f"is not below {name.removesuffix('_rank')} size {limit}")
    return OperationTable(path, columns, types, type_names, sizes)


def read_layout(path: Path) -> dict[str, int]:
    """Return the sizes in a layout file; names that are not sizes are left out. Raises BadTrace with file and line."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: the layout of the job cannot be read ({error})") from None
    sizes = {"tp_size": 1, "vpp_size": 1}
    for number, line in enumerate(lines, 1):
        name, separator, value = (part.strip() for part in line.partition("#")[0].partition(":"))
        if name and not separator:
            raise BadTrace(f"{path}: line {number}: not `name: value`")
        if name.endswith("_size"):
            if not value.isascii() or not value.isdigit() or not 0 < int(value) <= MAX_SIZE:
                raise BadTrace(f"{path}: line {number}: {name} must be a number from 1 to {MAX_SIZE}, not {value!r}")
            sizes[name] = int(value)
    if missing := sorted({"dp_size", "pp_size"} - sizes.keys()):
        raise BadTrace(f"{path}: {', '.join(missing)} is missing")
    return sizes


def _layout_path(path: Path) -> Path:
    stem = path.stem.replace("trace", "meta", 1)
    paths = [path.with_name(stem + suffix) for suffix in LAYOUT_SUFFIXES]
    return next((candidate for candidate in paths if candidate.is_file()), paths[0])


def _numbers(path: Path, table: pa.Table, name: str) -> Array:
    column = table[name].type
    if name in WHOLE and not pa.types.is_integer(column):
        raise BadTrace(f"{path}: column {name} must have whole numbers, not {column}")
    if not (pa.types.is_integer(column) or pa.types.is_floating(column)):
        raise BadTrace(f"{path}: column {name} must have numbers, not {column}")
    values = np.asarray(table[name].to_numpy()).astype(np.int64 if name in WHOLE else np.float64)
    if name in SECONDS:
        _fail(path, name, ~(np.abs(values) <= MAX_SECONDS), f"is no number of seconds up to {MAX_SECONDS:.0f}")
    if name != "start_ts":
        _fail(path, name, values < 0, "is negative")
    return values


def _types(path: Path, table: pa.Table) -> tuple[Array, tuple[str, ...]]:
    """Return the type of each row as an index, and the names of types."""
    data = table[TYPE]
    if pa.types.is_dictionary(data.type):
        data = data.cast(data.type.value_type)
    if not pa.types.is_string(data.type) and not pa.types.is_large_string(data.type):
        raise BadTrace(f"{path}: column {TYPE} must have text, not {data.type}")
    encoded = data.combine_chunks().dictionary_encode()
    names = tuple(str(name) for name in encoded.dictionary.to_pylist())
    types = np.asarray(encoded.indices).astype(np.int64)
    unknown = np.array([name not in KINDS for name in names])
    _fail(path, TYPE, unknown[types], f"is none of {', '.join(KINDS)}")
    return types, names


def _fail(path: Path, column: str, wrong: Array, reason: str) -> None:
    """Raise BadTrace that names the first of the rows that are wrong; do nothing if there is none."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        more = f", and {len(rows) - 1} more rows" if len(rows) > 1 else ""
        raise BadTrace(f"{path}: row {rows[0]}{more}: column {column} {reason}")
