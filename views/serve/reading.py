"""Queries of one page, in ticks of a few each: a page with more is loaded over several ticks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from drumline.views.report.data import Row

#: Queries of a page in one tick.
MOST_QUERIES = 6
Text = tuple[list[str], list[list[str]]]


class PageSource(Protocol):
    """Answers queries of pages; several threads call it. Each method raises ClickHouseFailed and StackError."""

    def query(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a query."""

    def text(self, sql: str, parameters: Mapping[str, str], most: int) -> Text:
        """Return the names and at most `most` + 1 rows of a statement as text."""


class TickOver(Exception):
    """This tick has had its queries; the next one goes on with what they answered."""


class Reading:
    """Answers of one loading of a page. The page is loaded again in each tick, until no query is missing.

    Times in parameters come from answers that stay, so that they do not move between ticks. Callers must not change
    rows. Safe for several threads.
    """

    def __init__(self, source: PageSource, others_wait: bool = False) -> None:
        self._source = source
        self._others_wait = others_wait
        #: Whether the page was allowed to leave something out.
        self.hurried = False
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, str, int], Any] = {}
        self._left = 0
        #: Time that its queries took together; s. A query has one thread, so it is about the server's CPU time.
        self.spent_s = 0.0

    def hurries(self) -> bool:
        """Return whether other tabs wait for a first page: what costs most may be left to the next loading, at once."""
        self.hurried = self._others_wait
        return self._others_wait

    def begin_tick(self) -> None:
        """Allow the queries of a tick."""
        self._left = MOST_QUERIES

    def query(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        """Return the rows of a query. Raises TickOver, and errors of the source."""
        rows: list[Row] = self._answer((sql, repr(sorted(parameters.items())), -1), self._source.query, sql, parameters)
        return rows

    def text(self, sql: str, parameters: Mapping[str, str], most: int) -> Text:
        """Return an answer as text. Raises TickOver, and errors of the source."""
        key = (sql, repr(sorted(parameters.items())), most)
        text: Text = self._answer(key, self._source.text, sql, parameters, most)
        return text

    def _answer(self, key: tuple[str, str, int], method: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            if key in self._answers:
                return self._answers[key]
            if not self._left:
                raise TickOver
            self._left -= 1
        began = time.monotonic()
        try:
            answer = method(*arguments)
        finally:
            with self._lock:
                self.spent_s += time.monotonic() - began
        with self._lock:
            self._answers[key] = answer
        return answer
