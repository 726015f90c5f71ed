"""Queries of the pages as the page's read-only user, over few connections, and answers as files of bounded size."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

from drumline.infra.clickhouse.client import ClickHouseFailed, Client, connect, failure, rows
from drumline.infra.config.settings import Settings
from drumline.views.report.data import Row

#: Connections for pages, and for files: together below the queries that the page's role may run at a time.
CONNECTIONS, FILE_CONNECTIONS = 4, 2
QUERY_S = 60
#: Bytes of an answer as a file, which lies on disk until the browser has it, and files at a time.
MOST_FILE_BYTES, MOST_FILES = 256_000_000, 8


class FileRejected(RuntimeError):
    """An answer cannot be had as a file; the message says what to do instead."""


class Database:
    """Runs queries of the pages; safe for several threads, which wait for one of few connections."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.model_copy(update={"clickhouse": settings.clickhouse.read_by_page()})
        self._free = threading.Semaphore(CONNECTIONS)
        self._free_of_files = threading.Semaphore(FILE_CONNECTIONS)
        self._files = threading.Semaphore(MOST_FILES)
        self._lock = threading.Lock()
        self._idle: list[Client] = []

    def query(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a query. Raises ClickHouseFailed, StackError."""
        with self._client(self._free) as client:
            return rows(client, sql, parameters)

    def text(self, sql: str, parameters: Mapping[str, str], most: int) -> tuple[list[str], list[list[str]]]:
        """Return the names and at most `most` + 1 rows of a statement as ClickHouse writes them.

        Raises ClickHouseFailed, StackError."""
        from drumline.views.sqlshell.output import tsv_lines

        limits = {"max_result_rows": most + 1, "result_overflow_mode": "break"}
        with self._client(self._free) as client:
            try:
                answer = client.raw_query(sql, parameters=dict(parameters), fmt="TSVWithNames", settings=limits)
            except Exception as error:
                raise failure(error) from None
        names, *lines = tsv_lines(answer)
        return names, lines

    @contextmanager
    def file(self, sql: str, parameters: Mapping[str, str], form: str) -> Iterator[IO[bytes]]:
        """Yield a file with an answer in ClickHouse's format `form`, all rows, at its begin.

        No connection is held while a browser reads it. Raises FileRejected, ClickHouseFailed, StackError.
        """
        with self._place_of_file("drumline sql") as file:
            size = 0
            for part in self._parts(sql, parameters, form):
                size += len(part)
                if size > MOST_FILE_BYTES:
                    raise FileRejected(
                        f"the answer has more than {MOST_FILE_BYTES // 1_000_000} MB: ask for less, or use "
                        "`drumline sql`, which has no such limit"
                    )
                file.write(part)
            file.seek(0)
            yield file

    @contextmanager
    def kept(self, content: Callable[[], bytes]) -> Iterator[IO[bytes]]:
        """Yield a file with what `content` returns, at its begin; it counts among the files of answers.

        Raises FileRejected, and errors of `content`.
        """
        with self._place_of_file("drumline timeline") as file:
            file.write(content())
            file.seek(0)
            yield file

    @contextmanager
    def _place_of_file(self, command: str) -> Iterator[IO[bytes]]:
        """Yield an empty file, one of few at a time. `command`: what to use when there are too many."""
        if not self._files.acquire(blocking=False):
            raise FileRejected(f"{MOST_FILES} files are being read; try again later, or use `{command}`")
        try:
            with tempfile.TemporaryFile(prefix="drumline-serve-") as file:
                yield file
        finally:
            self._files.release()

    def _parts(self, sql: str, parameters: Mapping[str, str], form: str) -> Iterator[bytes]:
        from drumline.views.sqlshell.output import CSV, NAMES_LIMITS, for_file
        from drumline.views.sqlshell.spreadsheet import without_formulas

        limits = NAMES_LIMITS | {"http_write_exception_in_output_format": 0}
        with self._client(self._free_of_files) as client:
            try:
                sql = for_file(client, sql, dict(parameters), form)
                with client.raw_stream(sql, parameters=dict(parameters), fmt=form, settings=limits) as stream:
                    parts = iter(lambda: stream.read(1 << 16), b"")
                    yield from without_formulas(parts) if form == CSV else parts
            except (FileRejected, GeneratorExit):
                raise
            except Exception as error:
                raise failure(error) from None

    @contextmanager
    def _client(self, free: threading.Semaphore) -> Iterator[Client]:
        with free:
            with self._lock:
                client = self._idle.pop() if self._idle else None
            if client is None:
                database = self._settings.clickhouse.database
                client = connect(self._settings, reader=True, timeout_s=QUERY_S, database=database)
            try:
                yield client
            except ClickHouseFailed as error:
                if error.code:
                    self._give_back(client)
                else:  # no answer: the next request connects to where the server is then
                    client.close()
                raise
            except BaseException:
                client.close()
                raise
            else:
                self._give_back(client)

    def _give_back(self, client: Client) -> None:
        with self._lock:
            self._idle.append(client)
