"""An export of Nsight Systems as columns: read-only, in chunks, so that memory grows with the columns only."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from drumline.producers.replay.parquet import BadTrace
from drumline.schemas.columns import Array

#: Rows that are Python objects at a time.
CHUNK_ROWS = 65_536


class NsysDatabase:
    """Reads one export; close() or a `with` ends it. Every error is a BadTrace that names the file."""

    def __init__(self, path: Path) -> None:
        """Open the file read-only and check that it is an export. Raises BadTrace."""
        self.path = path
        try:
            self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            self._connection.execute("PRAGMA trusted_schema = OFF")  # a view or a generated column may run anything
            names = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        except sqlite3.Error as error:
            raise BadTrace(f"{path}: the SQLite file cannot be read ({error})") from None
        self.tables = frozenset(str(name) for (name,) in names)
        if "StringIds" not in self.tables:
            raise BadTrace(f"{path}: an SQLite file, but not an export of Nsight Systems (no table StringIds)")
        self._columns: dict[str, frozenset[str]] = {}

    def __enter__(self) -> NsysDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a repetition changes nothing."""
        self._connection.close()

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query whose result is small."""
        return list(self.iterate(query, parameters))

    def iterate(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query."""
        for rows in self._chunks(query, parameters):
            yield from rows

    def _chunks(self, query: str, parameters: Sequence[Any], place: str = "") -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query, at most CHUNK_ROWS at a time. `place`: of an error, after the file."""
        try:
            with closing(self._connection.execute(query, parameters)) as cursor:
                while rows := cursor.fetchmany(CHUNK_ROWS):
                    yield rows
        except sqlite3.Error as error:
            raise BadTrace(f"{self.path}: {place}{error}") from None

    def has_columns(self, table: str, *names: str) -> bool:
        """Return whether a table exists and has these columns."""
        if table not in self._columns:
            listed = self.rows("SELECT name FROM pragma_table_info(?)", (table,)) if table in self.tables else []
            self._columns[table] = frozenset(str(name) for (name,) in listed)
        return self._columns[table].issuperset(names)

    def columns(
        self, table: str, wanted: Mapping[str, tuple[str, Any]], where: str = "1", parameters: Sequence[Any] = ()
    ) -> dict[str, Array]:
        """Return columns of a table's rows that `where` selects; empty values and columns that lack are 0.

        `wanted`: name -> (column of the table, dtype). A value that its dtype cannot hold is a BadTrace.
        """
        terms = [
            f"coalesce({name}, 0)" if name == "rowid" or self.has_columns(table, name) else "0"
            for name, _ in wanted.values()
        ]
        chunks: dict[str, list[Array]] = {name: [] for name in wanted}
        # Names are this module's callers', values are parameters.
        for rows in self._chunks(
            f"SELECT {', '.join(terms)} FROM {table} WHERE {where}", parameters, f"table {table}: "
        ):
            for (name, (_, dtype)), values in zip(wanted.items(), zip(*rows, strict=True), strict=True):
                chunks[name].append(self._array(table, name, values, dtype))
        return {
            name: np.concatenate(chunks[name]) if chunks[name] else np.empty(0, dtype)
            for name, (_, dtype) in wanted.items()
        }

    def _array(self, table: str, name: str, values: Sequence[Any], dtype: Any) -> Array:
        try:
            return np.array(values, dtype=dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise BadTrace(f"{self.path}: table {table}: {name} is not a number that fits ({error})") from None

    def texts(self, ids: Array) -> dict[int, str]:
        """Return id -> text of these ids of StringIds."""
        out: dict[int, str] = {}
        listed = np.unique(ids).tolist()
        for at in range(0, len(listed), 500):  # SQLite takes 999 parameters at least
            chunk = listed[at : at + 500]
            marks = ",".join("?" * len(chunk))
            out.update(
                (int(i), str(text))
                for i, text in self.rows(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", chunk)
            )  # only question marks
        return out
