"""The tools of `drumline mcp`, over a read-only connection."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from drumline.infra.clickhouse.client import ClickHouseFailed, TransientError
from drumline.infra.clickhouse.error_codes import ErrorCode
from drumline.infra.clickhouse.queries import THEMES, UnknownQuery, queries, query
from drumline.infra.guidance.causes import CAUSES, WITHOUT_WINDOWS
from drumline.infra.guidance.hangs import HANGS
from drumline.infra.guidance.stages import unequal_stages_text
from drumline.views.client.connection import JOBS, Connection
from drumline.views.mcp.answers import MOST_ROWS, ROWS, plain, short_type, table
from drumline.views.report.data import NoSuchRun
from drumline.views.report.explanation import explain
from drumline.views.report.gaps import attempts_text, no_verdict, unreported_text
from drumline.views.sqlshell.hints import HINTS, unsupported_statement_hint
from drumline.views.sqlshell.interactive import DESCRIBE
from drumline.views.sqlshell.output import has_format
from drumline.views.sqlshell.request import BadRequest

#: Limits of a query; the user's own may be lower.
LIMITS: dict[str, int | str] = {
    "max_execution_time": 30,
    "max_memory_usage": 500_000_000,
    "max_result_bytes": 20_000_000,
    "result_overflow_mode": "break",
    "output_format_json_quote_64bit_integers": 0,
    "output_format_json_quote_denormals": 1,
    "http_write_exception_in_output_format": 0,
    "cancel_http_readonly_queries_on_client_close": 1,
}
_SETTINGS = re.compile(r"(?<![.\w])SETTINGS\b", re.IGNORECASE)
_TOO_MUCH = (ErrorCode.TIMEOUT_EXCEEDED, ErrorCode.TOO_SLOW, ErrorCode.MEMORY_LIMIT_EXCEEDED)
#: Remedies by ClickHouse's error code; elsewhere those of `drumline sql`.
_HINTS: dict[int, str] = {
    **dict.fromkeys(_TOO_MUCH, "read less: WHERE job = ... and a time range, fewer columns, no join of raw rows"),
    ErrorCode.TOO_MANY_ROWS_OR_BYTES: "aggregate, or use LIMIT",
    ErrorCode.BAD_QUERY_PARAMETER: "the value does not fit the parameter's type",
}
#: Codes of what the engine refuses to a reader.
_DENIED = frozenset({ErrorCode.READONLY, ErrorCode.ACCESS_DENIED})
_TABLES = """SELECT name, comment FROM system.tables
WHERE database = currentDatabase() AND engine != 'MaterializedView' AND NOT match(name, '_versions$|^schema_')
ORDER BY name"""
_Answer = TypeVar("_Answer")


class ToolFailed(Exception):
    """A call that cannot be answered; the text is for the agent, and says what to do."""


class Tools:
    """Answers the tools' calls, one at a time, on a connection that is opened by the first.

    Thread-safe; calls block. Each raises ToolFailed. `open_connection` is called again after the server was away.
    """

    def __init__(self, open_connection: Callable[[], Connection]) -> None:
        self._open = open_connection
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def close(self, timeout_s: float = -1) -> None:
        """Close the connection, after the call that runs; leave it open where that takes longer than `timeout_s`."""
        if self._lock.acquire(timeout=timeout_s):
            connection, self._connection = self._connection, None
            self._lock.release()
            if connection is not None:
                connection.close()

    def questions(self, theme: str = "") -> dict[str, Any]:
        """Return the named questions with their parameters; `default` null = required."""
        chosen = [entry for entry in queries().values() if theme in ("", entry.theme)]
        if not chosen:
            raise ToolFailed(f"no theme is called {theme!r}; there are: {', '.join(THEMES)}")
        return {"questions": [entry.described() for entry in chosen]}

    def named_question(
        self, question: str, parameters: Mapping[str, object], max_rows: int = ROWS, all_runs: bool = False
    ) -> dict[str, Any]:
        """Return the answer of a named question: of all runs of its job, of one, or by default of the newest."""
        try:
            chosen = query(question)
            prepared = self._use(lambda db: db.prepare(question, parameters, all_runs))
        except UnknownQuery as error:
            raise ToolFailed(f"{error}; list_questions names all") from None
        except BadRequest as error:
            raise ToolFailed(str(error).replace("--", "")) from None
        answer = self._rows(prepared.sql, prepared.values, max_rows)
        return {"question": chosen.question, "notes": chosen.notes, "parameters": plain(prepared.values), **answer}

    def schema(self, name: str = "") -> dict[str, Any]:
        """Return tables and views with their comments, or the columns of one."""
        if not name:
            return {"tables": plain(self._use(lambda db: db.rows(_TABLES)))}
        columns = self._use(lambda db: db.rows(DESCRIBE, {"table": name}))
        if not columns:
            raise ToolFailed(f"no table or view is called {name!r}; schema without a table names all")
        return {"table": name, "columns": [plain({**row, "type": short_type(row["type"])}) for row in columns]}

    def sql(self, statement: str, parameters: Mapping[str, object], max_rows: int = ROWS) -> dict[str, Any]:
        """Return the answer of one read-only statement."""
        text = statement.strip().rstrip(";").strip()
        if not text:
            raise ToolFailed("the statement is empty")
        if has_format(text):
            raise ToolFailed("leave FORMAT out: the answer is JSON in any case")
        if _SETTINGS.search(text):
            raise ToolFailed(
                f"leave SETTINGS out: a query has {LIMITS['max_execution_time']} s, {LIMITS['max_memory_usage']} bytes "
                f"of memory and {MOST_ROWS} rows"
            )
        if hint := unsupported_statement_hint(text):
            raise ToolFailed(hint)
        return self._rows(text, parameters, max_rows)

    def explain(self, job: str, rank: int | None = None, run: str = "") -> dict[str, Any]:
        """Return who held a run back, why, at which cost, how to check it, and what to do."""
        explained = self._use(lambda db: explain(db.rows, job, run, rank))
        chosen, texts, windows, hangs, also_late, *_ = explained
        answer = {
            "job": job,
            "run": chosen["run"],
            "labels": chosen["labels"],
            "ranks": chosen["ranks"],
            "windows": int(windows["windows"]),
            "evaluated": int(windows["evaluated"]),
            "verdicts": [text.as_json() for text in texts],
            "hangs": hangs,
            "other_late_ranks": [text.rank for text in also_late],
            "is_cut": explained.is_cut,
            "stages": unequal_stages_text(windows["stages"]) if rank is None else "",
            "attempts": attempts_text(chosen, job),
            "unreported": unreported_text(chosen),
            "note": "" if texts else no_verdict(windows, rank, int(chosen["ranks"]), hangs),
        }
        cleaned: dict[str, Any] = plain(answer)
        return cleaned

    def jobs(self, max_rows: int = ROWS) -> dict[str, Any]:
        """Return the runs of all jobs, the newest first."""
        return self._rows(JOBS, {}, max_rows)

    def causes(self, cause: str = "") -> dict[str, Any]:
        """Return what causes and reasons of hangs mean, how to check them, and what to do."""
        entries = [entry for entry in (*CAUSES, *WITHOUT_WINDOWS, *HANGS) if cause in ("", entry.cause, entry.detail)]
        if not entries:
            known = ", ".join(dict.fromkeys(entry.cause for entry in (*CAUSES, *WITHOUT_WINDOWS, *HANGS)))
            raise ToolFailed(f"no cause is called {cause!r}; there are: {known}")
        keys = ("cause", "detail", "meaning", "check", "act", "escalate")
        return {"causes": [{key: getattr(entry, key) for key in keys} for entry in entries]}

    def _rows(self, text: str, values: Mapping[str, object], max_rows: int) -> dict[str, Any]:
        most = max(1, min(max_rows, MOST_ROWS))
        limits = {**LIMITS, "max_result_rows": most + 1}
        return table(self._use(lambda db: db.raw(text, "JSONCompact", values, **limits)), most)

    def _use(self, call: Callable[[Connection], _Answer]) -> _Answer:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._open()
                return call(self._connection)
            except NoSuchRun as error:
                raise ToolFailed(str(plain(str(error)))) from None
            except ClickHouseFailed as error:
                if isinstance(error, TransientError) and not error.code and self._connection is not None:
                    self._connection.close()  # the next call opens another
                    self._connection = None
                raise ToolFailed(str(plain(_message(error)))) from None


def _message(error: ClickHouseFailed) -> str:
    if error.code in _DENIED:
        return f"refused by the database: this connection only reads. {error}"
    hint = _HINTS.get(error.code, HINTS.get(error.code, ""))
    return f"{error}; {hint}" if hint else str(error)
