"""Hints for statements that `drumline sql` does not support, and for ClickHouse's errors."""

from __future__ import annotations

import difflib
import re

from drumline.infra.clickhouse.error_codes import ErrorCode
from drumline.infra.runtime.nearest import did_you_mean

_READ_LESS = "read less (--since, --until, LIMIT), or allow more time: SETTINGS max_execution_time = 300"
_TYPES = '`drumline sql "DESCRIBE TABLE steps"` lists columns with their types'
#: Remedies by ClickHouse's error code, where the message has none.
HINTS: dict[int, str] = {
    ErrorCode.UNKNOWN_DATABASE: "run `drumline migrate`",
    ErrorCode.UNKNOWN_TABLE: '`drumline sql "SHOW TABLES"` lists the tables',
    ErrorCode.UNKNOWN_IDENTIFIER: '`drumline sql "DESCRIBE TABLE steps"` lists the columns of a table',
    ErrorCode.TIMEOUT_EXCEEDED: _READ_LESS,
    ErrorCode.TOO_SLOW: _READ_LESS,
    ErrorCode.QUOTA_EXCEEDED: (
        "this user's quota is used up; retry when the interval named here has ended, or as another user"
    ),
    ErrorCode.TOO_MANY_SIMULTANEOUS_QUERIES: (
        "too many queries at a time for this user; wait for one of them, or cancel one"
    ),
    ErrorCode.MEMORY_LIMIT_EXCEEDED: (
        "the query needs more memory than this user may use; read less, or aggregate before joining"
    ),
    ErrorCode.TOO_MANY_ROWS_OR_BYTES: "the result is too large; use LIMIT, aggregate, or read parts with --csv",
    ErrorCode.UNKNOWN_FUNCTION: (
        "`drumline sql \"SELECT name FROM system.functions WHERE name ILIKE '%PART%'\"` lists functions"
    ),
    ErrorCode.ILLEGAL_TYPE_OF_ARGUMENT: _TYPES,
    ErrorCode.TYPE_MISMATCH: _TYPES,
    ErrorCode.NOT_AN_AGGREGATE: "put it into an aggregate function, such as any(), or behind GROUP BY",
    ErrorCode.BAD_QUERY_PARAMETER: (
        "the value does not fit the parameter's type; `drumline sql QUESTION --help` shows types"
    ),
    ErrorCode.ACCESS_DENIED: (
        "this user may not do that; readers have drumline's tables (SHOW TABLES) and the catalogue: "
        "docs/guide/security.md"
    ),
}
_READS_ONLY = (
    "this command only reads; rights and server control need an administrator with ClickHouse's client, or "
    "`drumline roles`"
)
#: Pattern of the first keywords of unsupported statements -> hint. ClickHouse itself rejects statements that write.
_UNSUPPORTED = {
    r"SET": "a setting holds for one query: put it at its end, SELECT ... SETTINGS max_threads = 1",
    r"USE": "every call starts in DRUMLINE_CLICKHOUSE__DATABASE: write database.table",
    r"GRANT|REVOKE|SYSTEM|BEGIN|COMMIT|ROLLBACK": _READS_ONLY,
    r"(CREATE|ALTER|DROP)\s+(USER|ROLE|QUOTA|SETTINGS|PROFILE|ROW|POLICY)": _READS_ONLY,
}
#: What the client appends to a statement, and ClickHouse quotes in messages; how it does where that was read as a name.
_FORMAT = r"(?:TSV|CSV)(?:WithNames)?|JSON\w*|Pretty\w*|Parquet|Arrow|Native"
_APPENDED = re.compile(rf"\s*\bFORMAT (?:{_FORMAT})\b")
_ENDED = re.compile(rf"FORMAT AS (?:{_FORMAT})\b|failed at position \d+ \((?:{_FORMAT})\)")
_BEHIND = re.compile(r" failed at position \d+ \(FORMAT\)[^.]*\.")
#: First words of statements that only read.
_STATEMENTS = ("SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS", "CHECK", "FROM")
#: What a reader's statement would have to write: a list of all columns of the table.
_COLUMNS_OF_GRANT = re.compile(r"\((?:\w+, )+\w+\)")
_COMMENTS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*", re.DOTALL)


def unsupported_statement_hint(statement: str) -> str:
    """Return a hint for a statement without a result; "" for a query, or where ClickHouse has a message."""
    start = statement[comments.end() :] if (comments := _COMMENTS.match(statement)) else statement
    hints = (hint for pattern, hint in _UNSUPPORTED.items() if re.match(rf"(?:{pattern})\b", start, re.IGNORECASE))
    return next(hints, "") or (_misspelt(start) if re.search(r"\s", start) else "")  # a question has one word


def _misspelt(start: str) -> str:
    """Return the statement that a first word is spelt like; "" where it is one, or like none."""
    name = re.match(r"\w*", start)[0].upper()  # type: ignore[index]
    close = [] if name in _STATEMENTS else difflib.get_close_matches(name, _STATEMENTS, n=1, cutoff=0.7)
    return f"no statement begins with {name}; {did_you_mean(close)}" if close else ""


def with_remedy(error: Exception, nearest: str = "") -> str:
    """Return the text of an error of ClickHouse, with a remedy where there is one. `nearest`: a remedy that is known
    better, from the names in the database.
    """
    hint = nearest or HINTS.get(getattr(error, "code", 0), "")
    if _ENDED.search(str(error)):
        return "Syntax error: the statement ends where a column, a table, a condition or a number is missing"
    if "Multi-statements are not allowed" in str(error):
        return "one statement at a time: leave out what follows the first semicolon"
    text = _COLUMNS_OF_GRANT.sub("", _BEHIND.sub("", _APPENDED.sub("", str(error))))
    return f"{text}; {hint}" if hint else text
