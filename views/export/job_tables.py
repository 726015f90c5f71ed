"""The rows of a run, as files: one or several for each table, in Parquet or Arrow. Written by ClickHouse, streamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drumline.infra.clickhouse.client import Client, failure, rows
from drumline.schemas.topics import TOPICS
from drumline.views.report.data import find_run
from drumline.views.sqlshell.output import NAMES_LIMITS, with_names

#: Rows of a file at most, where a table has ranks: the limit of readers is 10 million rows of an answer.
MOST_ROWS = 5_000_000
#: Format -> (ClickHouse's name, ending of files). Arrow: the file format, which Feather readers take too.
FORMATS = {"parquet": ("Parquet", "parquet"), "arrow": ("Arrow", "arrow")}
_LIMITS = NAMES_LIMITS | {
    "max_result_rows": 2 * MOST_ROWS,
    "max_execution_time": 600,
    "http_write_exception_in_output_format": 0,
    "output_format_parquet_compression_method": "zstd",
    "output_format_parquet_string_as_string": 1,
    "output_format_arrow_string_as_string": 1,
    "output_format_arrow_compression_method": "zstd",
}
_COLUMNS = """
SELECT table, name, type FROM system.columns
WHERE database = currentDatabase() AND table IN {tables:Array(String)} ORDER BY table, position
"""
_OF_RUN = "FROM {table} AS t WHERE t.job = {{job:String}} AND t.run = {{run:String}}"


class NoSuchTable(LookupError):
    """A table was named that a run has no rows in."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """Describes a written file: its name in the folder, table, rows, and the ranks in it; all = no selection."""

    name: str
    table: str
    rows: int
    bytes: int
    ranks: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Export:
    """Describes what was written, as manifest.json in the folder has it."""

    job: str
    run: str
    files: list[TableFile]

    def manifest(self) -> str:
        """Return the text of manifest.json."""
        return json.dumps(asdict(self), indent=2) + "\n"


def table_names() -> list[str]:
    """Return the tables that a run may have rows in."""
    return sorted({spec.table for spec in TOPICS if spec.table})


def export(
    client: Client,
    job: str,
    run: str,
    tables: Collection[str],
    form: str,
    folder: Path,
    progress: Callable[[TableFile], None] = lambda file: None,
) -> Export:
    """Write the rows of a run, by default the newest, and manifest.json last. Tables without rows have no file.

    Enumerations are written as text, times without fractions as such. Raises NoSuchRun, NoSuchTable, OSError, and
    errors of ClickHouse.
    """
    known = table_names()
    if unknown := [table for table in tables if table not in known]:
        raise NoSuchTable(f"no table {unknown[0]!r} has rows of jobs; there are: {', '.join(known)}")
    chosen, _ = find_run(lambda sql, values: rows(client, sql, values), job, run)
    columns: dict[str, dict[str, str]] = {}
    for row in rows(client, _COLUMNS, {"tables": sorted(tables or known)}):
        columns.setdefault(row["table"], {})[row["name"]] = row["type"]
    result = Export(job, str(chosen["run"]), [])
    values = {"job": job, "run": result.run}
    for table, types in columns.items():
        if not {"job", "run"} <= types.keys():
            continue
        for file in _files(client, table, types, values, form, folder):
            result.files.append(file)
            progress(file)
    (folder / "manifest.json").write_text(result.manifest())
    return result


def _files(
    client: Client, table: str, types: Mapping[str, str], values: Mapping[str, Any], form: str, folder: Path
) -> Iterator[TableFile]:
    ending = FORMATS[form][1]
    of_run = _OF_RUN.format(table=table)
    selected = f"SELECT {', '.join(_selected(name, kind) for name, kind in types.items())} {of_run}"
    parts = _parts(client, of_run, "rank" in types, values)
    for number, (count, ranks) in enumerate(parts):
        name = f"{table}.{ending}" if len(parts) == 1 else f"{table}-{number:04}.{ending}"
        sql, bound = selected, dict(values)
        if ranks is not None:
            sql += " AND t.rank BETWEEN {first:Int32} AND {last:Int32}"
            bound |= {"first": ranks[0], "last": ranks[1]}
        size = _write(client, with_names(sql, types), bound, FORMATS[form][0], folder / name)
        yield TableFile(name, table, count, size, ranks)


def _parts(
    client: Client, of_run: str, has_ranks: bool, values: Mapping[str, Any]
) -> list[tuple[int, tuple[int, int] | None]]:
    """Return the rows of each file and its ranks; a single one without a selection where they are few."""
    if not has_ranks:
        [row] = rows(client, f"SELECT count() AS rows {of_run}", values)
        return [(int(row["rows"]), None)] if row["rows"] else []
    counts = rows(client, f"SELECT t.rank AS rank, count() AS rows {of_run} GROUP BY rank ORDER BY rank", values)
    parts: list[list[int]] = []
    for row in counts:
        rank, count = int(row["rank"]), int(row["rows"])
        if parts and parts[-1][2] + count <= MOST_ROWS:
            parts[-1][1:] = [rank, parts[-1][2] + count]
        else:
            parts.append([rank, rank, count])
    if len(parts) == 1:
        return [(parts[0][2], None)]
    return [(count, (first, last)) for first, last, count in parts]


def _selected(name: str, kind: str) -> str:
    """Return a column for a file, in which a time in seconds would be a number."""
    plain = kind.removeprefix("LowCardinality(").removeprefix("Nullable(")
    if plain.startswith(("DateTime(", "DateTime)")) or plain == "DateTime":
        return f"toDateTime64(t.{name}, 0) AS {name}"
    return f"t.{name} AS {name}"


def _write(client: Client, sql: str, values: Mapping[str, Any], form: str, path: Path) -> int:
    """Write an answer to a file and return its bytes; a file that is not complete has another name."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            try:
                with client.raw_stream(sql, parameters=dict(values), fmt=form, settings=_LIMITS) as stream:
                    for block in iter(lambda: stream.read(1 << 20), b""):
                        file.write(block)
            except OSError:
                raise
            except Exception as error:
                raise failure(error) from None
        part.replace(path)
        return path.stat().st_size
    finally:
        part.unlink(missing_ok=True)
