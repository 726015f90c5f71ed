"""Client of ClickHouse (clickhouse-connect over HTTP), and classification of its errors: retry later, or fatal."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from drumline.infra.clickhouse import tls as clickhouse_tls
from drumline.infra.clickhouse.error_codes import NOT_MIGRATED, PERMANENT
from drumline.infra.telemetry.insecure import clickhouse_exposure, warn_once
from drumline.infra.telemetry.secrets import hide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drumline.infra.config.settings import Settings

#: Over the Distributed tables of several servers a subquery is answered once, by all; a reader's profile has it.
WRITER_SETTINGS: dict[str, str] = {"distributed_product_mode": "global"}
#: Settings that versions of ClickHouse give different defaults; exactly-once inserts rely on each of them.
INSERT_SETTINGS: dict[str, str | int] = {
    "async_insert": 0,
    "insert_deduplicate": 1,
    "deduplicate_blocks_in_dependent_materialized_views": 1,
    "max_insert_block_size": 1_048_449,
    "min_insert_block_size_rows": 1_048_449,
    "min_insert_block_size_bytes": 268_402_944,
    "max_partitions_per_insert_block": 0,
    "input_format_parallel_parsing": 0,
    "max_insert_threads": 1,
    "wait_end_of_query": 1,
    "distributed_foreground_insert": 1,
}
#: What is missing -> how the messages of NOT_MIGRATED name it; what follows there is the whole statement.
_MISSING = {
    "database": re.compile(r"Database (\S+) does not exist"),
    "table": re.compile(r"(?:(?i:table) expression identifier |Table |find table: )'?([\w.]*\w)"),
    "column": re.compile(r"(?:(?i:identifier)|column) [`']([\w.]+)"),
}


class ClickHouseFailed(RuntimeError):
    """A request to ClickHouse failed. `code` is ClickHouse's error code, 0 without one."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class TransientError(ClickHouseFailed):
    """Retry later: the server is down, unreachable or overloaded."""


class PermanentError(ClickHouseFailed):
    """Fatal: the server will answer the same next time. Wrong password, missing table, invalid SQL."""


class Client(Protocol):
    """The methods of a clickhouse-connect client that drumline uses. Calls block; it has no session, so several threads
    may query.
    """

    def command(self, cmd: str, **kwargs: Any) -> Any:
        """Execute a statement without rows; return its single value or summary."""

    def query(self, query: str, **kwargs: Any) -> Any:
        """Return the parsed rows of a query."""

    def query_arrow(self, query: str, **kwargs: Any) -> Any:
        """Return the rows of a query as a pyarrow.Table."""

    def raw_query(self, query: str, **kwargs: Any) -> bytes:
        """Return a query's answer as the bytes of its format."""

    def raw_stream(self, query: str, **kwargs: Any) -> Any:
        """Return a query's answer as a stream of bytes."""

    def raw_insert(self, table: str, **kwargs: Any) -> Any:
        """Insert a block that is already in ClickHouse's format."""

    def close(self) -> None:
        """Close the connections."""


def password(settings: Settings, reader: bool) -> str:
    """Return the configured password of the writer or the reader, else the local stack's, else ""."""
    clickhouse = settings.clickhouse
    secret = clickhouse.reader_password if reader else clickhouse.password
    if secret is not None:
        return secret.get_secret_value()
    if clickhouse.url:
        return ""
    from drumline.infra.config.local_credentials import local_password

    secret_text = local_password(settings, clickhouse.reader if reader else clickhouse.user).get_secret_value()
    hide(secret_text)
    return secret_text


def connect(settings: Settings, *, reader: bool = False, timeout_s: int = 60, database: str = "") -> Client:
    """Connect a client: the writer to the settings' URL, a reader to the best of several replicas.

    Without `database` it can connect before the migrations; statements name their database.

    Raises:
        TransientError: retry later.
        PermanentError: fatal.
    """
    if reader and settings.clickhouse.replicas:
        from drumline.infra.clickhouse.replicas import connect_reader

        return connect_reader(settings, timeout_s, database)
    return connect_to(settings, reader=reader, timeout_s=timeout_s, database=database)


def connect_to(
    settings: Settings, *, reader: bool = False, timeout_s: int = 60, database: str = "", connect_s: int = 5
) -> Client:
    """Connect to the settings' URL, whatever replicas there are; `connect_s`: time for the connection.

    Raises:
        TransientError: retry later.
        PermanentError: fatal.
    """
    import clickhouse_connect

    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)  # it raises what it logs
    url = urlsplit(settings.clickhouse_url)
    user = settings.clickhouse.reader if reader else settings.clickhouse.user
    for text in clickhouse_exposure(settings):
        warn_once(text)
    try:
        client: Any = clickhouse_connect.get_client(
            host=url.hostname or "127.0.0.1",
            port=url.port or (8443 if url.scheme == "https" else 8123),
            interface=url.scheme or "http",
            username=user,
            password=password(settings, reader),
            database=database or "default",
            connect_timeout=connect_s,
            send_receive_timeout=timeout_s,
            autogenerate_session_id=False,
            compress=False,
            query_retries=0,
            settings={} if reader else WRITER_SETTINGS,
            **clickhouse_tls.options(settings),
        )
    except Exception as error:
        failed = failure(error, f"{user} at {settings.clickhouse_url}")
        hint = clickhouse_tls.hint(settings, failed.code, str(failed), reader)
        if not hint and isinstance(failed, TransientError) and not failed.code:
            hint = "; `drumline up` starts the local one, DRUMLINE_CLICKHOUSE__URL names another"
        raise type(failed)(f"{failed}{hint}", failed.code) from None
    connected: Client = client
    return connected


def is_missing(error: Exception) -> bool:
    """Return whether a database, table or column is missing."""
    return getattr(error, "code", 0) in NOT_MIGRATED


def with_hint(error: Exception) -> str:
    """Return the error's text; where tables are missing, which one and the remedy, without ClickHouse's statement."""
    if not is_missing(error):
        return str(error)
    matches = ((kind, pattern.search(str(error))) for kind, pattern in _MISSING.items())
    named = next((f"no {kind} {match[1]}" for kind, match in matches if match), "not the tables of this drumline")
    return f"ClickHouse has {named}: run `drumline migrate`"


def insert_once(client: Client, table: str, block: bytes, token: str, form: str = "Native", **more: Any) -> None:
    """Insert a block under a deduplication token: `table` (database.table) and its views drop a repetition.

    Raises TransientError or PermanentError.
    """
    settings = {**INSERT_SETTINGS, "insert_deduplication_token": token}
    try:
        client.raw_insert(table, insert_block=block, fmt=form, settings=settings, **more)
    except Exception as error:
        raise failure(error, table.partition(".")[2]) from None


def failure(error: Exception, where: str = "") -> ClickHouseFailed:
    """Convert an exception of clickhouse-connect to PermanentError or TransientError, with ClickHouse's own message."""
    if isinstance(error, ClickHouseFailed):
        return error
    if "Connection broken" in str(error):
        return _broken(error, where)
    code = getattr(error, "code", None) or 0
    tls = clickhouse_tls.tls_error(str(error))
    message = tls or message_of(error)
    text = f"{where}: {message}" if where else message
    if (
        tls
        or code in PERMANENT
        or (code == 0 and type(error).__name__ in ("ProgrammingError", "NotSupportedError", "DataError"))
    ):
        return PermanentError(text, code)
    return TransientError(text, code)


def _broken(error: BaseException | None, where: str) -> ClickHouseFailed:
    """Return the error of a truncated answer: ClickHouse appends the reason, unless it crashed."""
    sent = b""
    while error is not None and not sent:
        partial = getattr(error, "partial", b"")
        sent = partial if isinstance(partial, bytes) else b""
        error = error.__cause__ or error.__context__
    match = re.search(r"__exception__\r\n\S+\r\n(Code: (\d+)\..*)", sent.decode(errors="replace"), re.DOTALL)
    if match is None:
        text = "ClickHouse closed the connection in the middle of the answer; the output is incomplete"
        return TransientError(f"{where}: {text}" if where else text)
    code, text = int(match[2]), message_of(RuntimeError(match[1]))
    kind = PermanentError if code in PERMANENT else TransientError
    return kind(f"{where}: {text}" if where else text, code)


def readiness_reason(settings: Settings) -> str:
    """Return why ClickHouse does not answer the writer, or "". The sentences are fixed and contain no settings."""
    try:
        client = connect(settings, timeout_s=5)
        try:
            command(client, "SELECT 1")
        finally:
            client.close()
    except PermanentError as error:
        code = f" (code {error.code})" if error.code else ""
        return f"ClickHouse rejects it{code}; see the log"
    except Exception:
        return "ClickHouse does not answer"
    return ""


def message_of(error: Exception) -> str:
    """Return ClickHouse's message without stack, version trailer and the driver's wrapping."""
    text = str(error).strip()
    no_answer = re.search(r"\[Errno \d+\] ([A-Za-z ]+)|(Read timed out|Name or service not known)", text)
    if no_answer and "DB::Exception" not in text:
        return f"ClickHouse does not answer ({no_answer[1] or no_answer[2]})"
    if "DB::Exception" not in text and re.search(r"EOF occurred|Connection aborted|Connection reset", text):
        return f"ClickHouse does not answer ({clickhouse_tls.CLOSED})"
    if "DB::Exception:" in text:
        text = text.split("DB::Exception:", 1)[1]
    text = text.split("\nStack trace", 1)[0].split(", Stack trace", 1)[0].split("(version ", 1)[0]
    text = re.sub(r" Expected one of: .*(?= \([A-Z_]+\)|$)", "", " ".join(text.split()))
    return re.sub(r" \(for url [^)]*\)$", "", text)[:2000]


def command(client: Client, sql: str, parameters: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
    """Run a statement. Raises PermanentError or TransientError."""
    try:
        return client.command(sql, parameters=dict(parameters or {}), **kwargs)
    except Exception as error:
        raise failure(error) from None


def rows(client: Client, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Run a query and return a dict per row. Raises PermanentError or TransientError."""
    try:
        result = client.query(sql, parameters=dict(parameters or {}))
    except Exception as error:
        raise failure(error) from None
    return [dict(zip(result.column_names, row, strict=True)) for row in result.result_rows]
