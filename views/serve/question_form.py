"""The named questions of `drumline sql` as forms, their answers as a table or a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING

from drumline.infra.clickhouse.client import ClickHouseFailed
from drumline.infra.clickhouse.queries import Chart, Parameter, queries, takes_newest_run
from drumline.infra.clickhouse.queries import Query as NamedQuery
from drumline.views.client.connection import of_newest_run
from drumline.views.report import charts
from drumline.views.report.answer_chart import answer_chart
from drumline.views.report.data import NoSuchRun
from drumline.views.serve.reading import PageSource
from drumline.views.serve.runs.chart_values import answer_values
from drumline.views.sqlshell.hints import with_remedy
from drumline.views.sqlshell.questions import is_time
from drumline.views.sqlshell.request import BadRequest, Request

if TYPE_CHECKING:
    from markupsafe import Markup

#: Rows of the table on the page; files have all.
MOST_ROWS = 500
#: Ending of a file -> (ClickHouse's format, media type).
FILES = {"csv": ("CSVWithNames", "text/csv; charset=utf-8"), "parquet": ("Parquet", "application/vnd.apache.parquet")}


@dataclass(frozen=True)
class Answer:
    """The answer of a question: names of columns, which of them are numbers, and rows as text. problem: instead.

    `chart`: how it is drawn; None = it is not.
    """

    names: list[str]
    numbers: list[bool]
    rows: list[list[str]]
    problem: str = ""
    chart: Chart | None = None

    @property
    def is_cut(self) -> bool:
        """Return whether there are more rows than shown."""
        return len(self.rows) > MOST_ROWS


def themes() -> list[tuple[str, list[NamedQuery]]]:
    """Return all questions by theme, in the cookbook's order."""
    return [(theme, list(group)) for theme, group in groupby(queries().values(), lambda query: query.theme)]


def values(source: PageSource, named: NamedQuery, sent: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a form that was sent, as `drumline sql` takes them: an empty field has its default,
    and a question about one run is about the newest.

    Raises BadRequest, NoSuchRun, and errors of the query for the newest run.
    """
    names = {parameter.name for parameter in named.parameters}
    given = {name: text.strip() for name, text in sent.items() if name in names and text.strip()}
    request = Request(named, given, is_named=True)
    request, _ = of_newest_run(request, source.query)
    return request.values(datetime.now(UTC))


def hint(named: NamedQuery, parameter: Parameter) -> str:
    """Return what an empty field stands for."""
    if parameter.name == "run" and takes_newest_run(named):
        return "newest"
    if parameter.name == "other_run":
        return "the one before"
    return "any" if is_time(parameter) or not parameter.default else parameter.default


def answer(source: PageSource, named: NamedQuery, sent: Mapping[str, str]) -> Answer:
    """Run a question. An error of its values is the answer's problem; raises ClickHouseFailed if no answer comes."""
    try:
        names, rows = source.text(named.sql, values(source, named, sent), MOST_ROWS)
    except (BadRequest, NoSuchRun) as error:
        return Answer([], [], [], str(error).replace("--", ""))
    except ClickHouseFailed as error:
        if not error.code:
            raise
        return Answer([], [], [], with_remedy(error))
    return with_numbers(names, rows, named.chart)


def with_numbers(names: list[str], rows: list[list[str]], chart: Chart | None = None) -> Answer:
    """Return rows as an answer: a column is of numbers where all its cells are."""
    numbers = [bool(rows) and all(_is_number(row[place]) for row in rows) for place in range(len(names))]
    return Answer(names, numbers, rows, chart=chart)


@dataclass(frozen=True)
class Picture:
    """An answer as drawn. `svg`: for a wide screen and for a phone; `values`: for the page's script; `text`: below."""

    svg: Markup
    values: str
    text: str


def picture(answered: Answer) -> Picture | None:
    """Draw an answer as its question says; None where it is not drawn, or has no number of it. It blocks."""
    from markupsafe import Markup

    chart, rows = answered.chart, answered.rows[:MOST_ROWS]
    if chart is None or not rows or (wide := answer_chart(chart, answered.names, rows)) is None:
        return None
    slim = answer_chart(chart, answered.names, rows, charts.SLIM)
    if slim is not None:
        charts.draw_ahead(slim.spec)
    svg = charts.svg(wide.spec) + (charts.svg(slim.spec) if slim is not None else "")
    by = f" over {wide.over}" if wide.over else f" by {', '.join(chart.labels)}"
    part = f"; the first {wide.rows} of {len(rows)} rows" if wide.rows < len(rows) else ""
    return Picture(Markup(svg), answer_values(wide), f"{', '.join(chart.measures)}{by}{part}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == "NULL"
    return True
