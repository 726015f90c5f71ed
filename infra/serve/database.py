"""Queries of the pages as the read-only user: few connections, and answers that requests share for a moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from drumline.infra.clickhouse.client import ClickHouseFailed, Client, connect, failure, rows
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError
from drumline.infra.report.data import Row

#: Connections: below the queries that the reader's role may run at a time, which people at a terminal need too.
CONNECTIONS = 4
#: Time for which an answer is shared: many people may watch one job. For OLD_S after it the old answer is given while
#: the new one is on its way. Answers kept at most.
SHARED_S, OLD_S, MOST_SHARED = 2.0, 8.0, 256
QUERY_S = 60


class _Answer:
    """Rows of a query and when they are outdated. The lock makes the first request the only one that queries."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows: list[Row] = []
        self.until = -OLD_S


class Database:
    """Runs queries of the pages; safe for several threads, which wait for one of few connections.

    Answers are shared: callers must not change rows.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._free = threading.Semaphore(CONNECTIONS)
        self._lock = threading.Lock()
        self._idle: list[Client] = []
        self._answers: dict[tuple[str, str], _Answer] = {}

    def query(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a query, at most SHARED_S + OLD_S old. Raises ClickHouseFailed, StackError."""
        key = (sql, repr(sorted(parameters.items())))
        now = time.monotonic()
        with self._lock:
            if len(self._answers) > MOST_SHARED:
                self._answers = {key: answer for key, answer in self._answers.items() if answer.until + OLD_S > now}
            answer = self._answers.setdefault(key, _Answer())
        if answer.until + OLD_S > now:
            if answer.until <= now and answer.lock.acquire(blocking=False):
                threading.Thread(target=self._renew, args=(answer, sql, parameters), daemon=True).start()
            return answer.rows
        with answer.lock:
            if answer.until <= time.monotonic():
                self._load(answer, sql, parameters)
            return answer.rows

    def _renew(self, answer: _Answer, sql: str, parameters: Mapping[str, Any]) -> None:
        """Replace an old answer; the caller has taken its lock. After a failure the next request queries itself."""
        try:
            self._load(answer, sql, parameters)
        except (ClickHouseFailed, StackError):
            answer.until = -OLD_S
        finally:
            answer.lock.release()

    def _load(self, answer: _Answer, sql: str, parameters: Mapping[str, Any]) -> None:
        with self._client() as client:
            answer.rows = rows(client, sql, parameters)
        answer.until = time.monotonic() + SHARED_S

    def text(self, sql: str, parameters: Mapping[str, str], most: int) -> tuple[list[str], list[list[str]]]:
        """Return the names and at most `most` + 1 rows of a statement as ClickHouse writes them.

        Raises ClickHouseFailed, StackError."""
        from drumline.infra.sqlshell.output import tsv_lines

        limits = {"max_result_rows": most + 1, "result_overflow_mode": "break"}
        with self._client() as client:
            try:
                answer = client.raw_query(sql, parameters=dict(parameters), fmt="TSVWithNames", settings=limits)
            except Exception as error:
                raise failure(error) from None
        names, *lines = tsv_lines(answer)
        return names, lines

    def stream(self, sql: str, parameters: Mapping[str, str], form: str) -> Iterator[bytes]:
        """Yield the bytes of an answer in ClickHouse's format `form`, all rows. Raises ClickHouseFailed, StackError."""
        from drumline.infra.sqlshell.output import NAMES_LIMITS, for_file

        with self._client() as client:
            try:
                sql = for_file(client, sql, dict(parameters), form)
                with client.raw_stream(sql, parameters=dict(parameters), fmt=form, settings=NAMES_LIMITS) as stream:
                    yield from iter(lambda: stream.read(1 << 16), b"")
            except Exception as error:
                raise failure(error) from None

    @contextmanager
    def _client(self) -> Iterator[Client]:
        with self._free:
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
