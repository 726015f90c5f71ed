"""A read-only connection whose answers are Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import PermanentError
from drumline.infra.clickhouse.queries import Query, compares_runs, queries, query
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError
from drumline.infra.localstack.clickhouse.engine import ensure_engine
from drumline.views.client.arrow import with_types
from drumline.views.report.data import NoSuchRun, Row, find_run
from drumline.views.report.data import Query as RowQuery
from drumline.views.sqlshell.request import BadRequest, Request

if TYPE_CHECKING:
    import pyarrow as pa

#: Runs of all jobs, the newest first.
JOBS = "SELECT * FROM jobs ORDER BY started DESC, job, run"
_RUNS = "SELECT * FROM jobs WHERE job = {job:String} ORDER BY started DESC, run"
_VERDICTS = """SELECT * FROM stragglers
WHERE job = {job:String} AND run = {run:String} AND severity >= {severity:String}
ORDER BY window_start, rank"""


class Prepared(NamedTuple):
    """Holds a statement and the values of its parameters."""

    sql: str
    values: dict[str, str]


def connect(
    settings: Settings | None = None,
    *,
    url: str = "",
    user: str = "",
    password: str | None = None,
    database: str = "",
    timeout_s: int = 600,
) -> Connection:
    """Connect as the read-only user.

    Without arguments the DRUMLINE_CLICKHOUSE__ variables count, and without those the local stack, whose engine is
    started if it is down and stopped at `close`. `url` (http(s)://host:port), `user`, `password` and `database` replace
    single ones of them.

    Raises:
        TransientError: ClickHouse does not answer; retry later.
        PermanentError: wrong password, no such database, or the local engine cannot run.
    """
    chosen = settings or Settings()
    given = {"url": url, "reader": user, "reader_password": password, "database": database}
    replaced = {name: value for name, value in given.items() if value}
    if replaced:
        server = type(chosen.clickhouse).model_validate({**dict(chosen.clickhouse), **replaced})
        chosen = chosen.model_copy(update={"clickhouse": server})
    return Connection(chosen, timeout_s)


def of_newest_run(request: Request, rows: RowQuery) -> tuple[Request, int]:
    """Return a request about the newest run of its job, compared with the one before where it compares two, and the
    number of other runs. Where it names runs, or is about all: the same request, and 0.

    Raises NoSuchRun, and the errors of `rows`, which queries.
    """
    if request.is_named and compares_runs(request.query):
        _check_both_sides(request, rows)
    if not request.wants_newest_run or "job" not in request.given:
        return request, 0
    job = request.given["job"]
    chosen, more_runs = find_run(rows, job, "")
    if not compares_runs(request.query):
        return request.of_run(str(chosen["run"])), len(more_runs)
    if not more_runs:
        raise NoSuchRun(f"job {job!r} has one run so far, {chosen['run']!r}; --other NAME compares it with another job")
    return request.of_run(str(chosen["run"]), more_runs[0]), len(more_runs)


def _check_both_sides(request: Request, rows: RowQuery) -> None:
    """Raise NoSuchRun where a job or run that a comparison names is not stored: its side would be a column of zeros."""
    given = request.given
    job, other, other_run = (given.get(name, "") for name in ("job", "other", "other_run"))
    if job:
        find_run(rows, job, given.get("run", ""))
    if other or (job and other_run):
        find_run(rows, other or job, other_run)


class Connection:
    """Answers questions until `close`; a context manager. For one thread; each call blocks for its answer.

    All methods raise TransientError (retry later) or PermanentError (fatal).
    """

    def __init__(self, settings: Settings, timeout_s: int = 600) -> None:
        self.database = settings.clickhouse.database
        self._stack = ExitStack()
        try:
            self._stack.enter_context(ensure_engine(settings))
            self._client = clickhouse.connect(
                settings, reader=True, timeout_s=timeout_s, database=settings.clickhouse.database
            )
            self._stack.callback(self._client.close)
            # A user who may write must not do so here.
            may_write = clickhouse.command(self._client, "SELECT getSetting('readonly')") == 0
        except StackError as error:
            self._stack.close()
            raise PermanentError(str(error)) from None
        except BaseException:
            self._stack.close()
            raise
        self._limits = {"readonly": 2} if may_write else {}

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; stop the local engine if this connection started it. A repetition does nothing."""
        self._stack.close()

    def jobs(self) -> pa.Table:
        """Return a row for each run of each job, the newest first: columns of the view `jobs`."""
        return self.sql(JOBS)

    def runs(self, job: str) -> pa.Table:
        """Return a row for each run of a job, the newest first; no rows for an unknown job."""
        return self.sql(_RUNS, {"job": job})

    def verdicts(self, job: str, run: str = "", severity: str = "warning") -> pa.Table:
        """Return the verdicts of a run, by default the newest, in order of time: columns of the view `stragglers`.

        `severity`: the lowest: suspect, warning, critical; "ok" for all windows that could be evaluated. Rank -1 is the
        job as a whole. Raises NoSuchRun, and BadRequest for another severity.
        """
        from drumline.sinks.tables.tables import SEVERITIES  # with NumPy, which few callers need

        if severity not in SEVERITIES:
            raise BadRequest(f"no severity is called {severity!r}; there are: {', '.join(SEVERITIES)}")
        chosen, _ = find_run(self.rows, job, run)
        return self.sql(_VERDICTS, {"job": job, "run": chosen["run"], "severity": severity})

    def questions(self) -> dict[str, Query]:
        """Return the named questions: name -> question, parameters with defaults, SQL."""
        return dict(queries())

    def ask(  # glossary: the word that people use for it
        self, question: str, /, *, all_runs: bool = False, **parameters: object
    ) -> pa.Table:
        """Return the answer of a named question; `parameters` are those of `drumline sql NAME --help`.

        A question about a job is about its newest run, unless `run` is given, or `all_runs`. Times: a datetime, or text
        such as "1h" (ago). Raises UnknownQuery, which names similar ones, BadRequest, which lists the parameters that
        there are, and NoSuchRun.
        """
        return self.sql(*self.prepare(question, parameters, all_runs))

    def prepare(self, question: str, parameters: Mapping[str, object], all_runs: bool = False) -> Prepared:
        """Return the SQL of a named question and the values of all its parameters. Raises as `ask`."""
        given = {name: str(value) for name, value in parameters.items()}
        request = Request(query(question), given, is_named=True, all_runs=all_runs)
        request.values(datetime.now(UTC))  # before anything is sent
        request, _ = of_newest_run(request, self.rows)
        return Prepared(request.query.sql, request.values(datetime.now(UTC)))

    def sql(self, text: str, parameters: Mapping[str, object] | None = None) -> pa.Table:
        """Return the rows of one statement. The server binds `{name:Type}` to `parameters`, so no value becomes SQL."""
        values = dict(parameters or {})
        try:
            table = self._client.query_arrow(text, parameters=values, settings=self._limits)
        except Exception as error:
            raise clickhouse.failure(error) from None
        return with_types(table, lambda: self._types(text, values))

    def raw(self, text: str, form: str, parameters: Mapping[str, object] | None = None, **limits: object) -> bytes:
        """Return the answer in one of ClickHouse's formats. `limits`: settings of this query."""
        try:
            values = dict(parameters or {})
            return self._client.raw_query(text, parameters=values, fmt=form, settings={**limits, **self._limits})
        except Exception as error:
            raise clickhouse.failure(error) from None

    def rows(self, text: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Return rows as dicts, for short answers."""
        return clickhouse.rows(self._client, text, parameters)

    def _types(self, text: str, values: Mapping[str, object]) -> dict[str, str]:
        """Return column -> ClickHouse type of a query's answer."""
        return {row["name"]: row["type"] for row in self.rows(f"DESCRIBE TABLE ({text})", values)}
