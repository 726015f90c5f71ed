"""What to do instead of a statement that asks nothing, and about ClickHouse's errors."""

from __future__ import annotations

import re

#: What to do about an error, by ClickHouse's code, where its own sentence does not say.
HINTS = {
    81: "run `drumline migrate`",
    159: "ask for less (--since, --until, LIMIT), or for more time: SETTINGS max_execution_time = 300",
    160: "ask for less (--since, --until, LIMIT), or for more time: SETTINGS max_execution_time = 300",
    201: "this user's quota is used up; ask again when the interval named here has ended, or as another user",
    202: "too many queries at a time for this user; wait for one of them, or cancel one",
    241: "the query needs more memory than this user may use; ask for less, or aggregate before joining",
    396: "the result is too large; use LIMIT, aggregate, or ask with --csv in parts",
    457: "the value does not fit the parameter's type; `drumline sql --list` shows types",
    497: "this user may not do that; readers have docs/reference/tables.md and the catalogue: docs/guide/security.md",
}
_READS_ONLY = (
    "this only asks; rights and what runs on the server are for an administrator with ClickHouse's own client, or for "
    "`drumline roles`"
)
#: Statements that are no questions, by their first words: what to do instead. Writing ones ClickHouse itself refuses.
_NO_QUESTIONS = {
    r"SET": "a setting holds for one query: put it at its end, SELECT ... SETTINGS max_threads = 1",
    r"USE": "every call starts in DRUMLINE_CLICKHOUSE__DATABASE: write database.table",
    r"GRANT|REVOKE|SYSTEM|BEGIN|COMMIT|ROLLBACK": _READS_ONLY,
    r"(CREATE|ALTER|DROP)\s+(USER|ROLE|QUOTA|SETTINGS|PROFILE|ROW|POLICY)": _READS_ONLY,
}
_COMMENTS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*", re.DOTALL)


def unsupported_statement_hint(statement: str) -> str:
    """What to do instead of a statement that has no answer; "" if it is a question, or ClickHouse can say why not."""
    start = statement[found.end() :] if (found := _COMMENTS.match(statement)) else statement
    fits = (said for words, said in _NO_QUESTIONS.items() if re.match(rf"(?:{words})\b", start, re.IGNORECASE))
    return next(fits, "")
