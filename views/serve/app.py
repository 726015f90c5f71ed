"""The application: addresses of the pages, and what a person sees where something is missing or down."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata, resources
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from drumline.infra.clickhouse.client import ClickHouseFailed, is_missing, with_hint
from drumline.infra.clickhouse.queries import UnknownQuery, option
from drumline.infra.clickhouse.queries import query as named_query
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError
from drumline.views.report import text
from drumline.views.report.data import NoSuchRun
from drumline.views.report.page import environment, style
from drumline.views.serve import boards, fleet, guide, links, question_form
from drumline.views.serve.access import Application, Guard
from drumline.views.serve.addresses import TRACE, BadAddress, compare_url, job_url, number_of, serving_url
from drumline.views.serve.database import Database, FileRejected
from drumline.views.serve.download import download
from drumline.views.serve.reading import PageSource, Reading
from drumline.views.serve.runs.pages import LIVE_S, STILL_S, JobPages, parts_of
from drumline.views.serve.runs.trace import ranks_of, request_trace, trace
from drumline.views.serve.views import Views
from drumline.views.sqlshell.questions import is_time
from drumline.views.sqlshell.request import BadRequest
from drumline.views.top.data import JOBS
from drumline.views.top.view import age

#: Answers a request with what it reads from a source; runs on a thread.
Handler = Callable[[Request, Reading], Response]


def application(settings: Settings) -> Application:
    """Return the application behind its guard."""
    pages = Pages(settings)
    routes = [
        Route("/", pages.shared(pages.fleet)),
        Route("/job/{rest:path}", pages.job_or_file),
        Route("/hosts", pages.shared(pages.hosts)),
        Route("/host/{name:path}", pages.shared(pages.host)),
        Route("/costs", pages.shared(pages.costs)),
        Route("/questions", pages.questions),
        Route("/question/{name}", pages.question_or_file),
        Route("/causes", pages.causes),
        Route("/cause/{name}", pages.cause),
        Route("/alert/{name}", pages.alert),
        Route("/static/{name}", pages.static),
        Route("/healthz", pages.health),
    ]
    handlers: Mapping[Any, Any] = {**dict.fromkeys(PROBLEMS, pages.problem), 404: pages.not_found}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), settings.serve)


#: Errors of a request that its page explains.
PROBLEMS = (NoSuchRun, UnknownQuery, BadRequest, BadAddress, FileRejected, ClickHouseFailed, StackError)


class Pages:
    """The pages; safe for several threads. Each method answers one kind of address."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._price = settings.stream.price_per_gpu_hour
        self._database = Database(settings)
        self._views = Views(self._database)
        self._jobs = JobPages(self._page, self._price)
        folder = resources.files("drumline.views.serve") / "static"
        self._files = {
            "style.css": (str(style()) + (folder / "style.css").read_text("utf-8"), "text/css"),
            **{name: ((folder / name).read_text("utf-8"), "text/javascript") for name in ("live.js", "charts.js")},
        }
        # In their addresses, so that a browser keeps no file of an older version.
        mark = hashlib.sha256("".join(content for content, _ in self._files.values()).encode()).hexdigest()[:12]
        self._environment = environment("drumline.views.serve")
        self._environment.globals.update(
            text=text, job_url=job_url, fleet_url=_fleet_url,
            age=lambda seconds: age(seconds).plain, words=_spaced, price=self._price,
            cost=lambda seconds: text.cost(self._price, seconds), signed=_signed, mark=mark,
            with_ranks=links.with_ranks, with_guides=links.with_guides, compare_url=compare_url,
            host_url=boards.host_url, serving_url=serving_url, picture=question_form.picture,
            version=metadata.version("drumline"),
        )  # fmt: skip

    def shared(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a page that all tabs at an address share."""

        async def endpoint(request: Request) -> Response:
            pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
            path = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
            address = repr((path.partition(b"?")[0], sorted(pair for pair in pairs if pair[0] != "token")))
            return await self._views.answer(address, lambda source: self._explained(handler, request, source))

        return endpoint

    def _explained(self, handler: Handler, request: Request, source: Reading) -> Response:
        try:
            try:
                return handler(request, source)
            except NoSuchRun as error:
                return self._missing(404, str(error), self._job_names(source))
        except PROBLEMS as error:
            return self.problem(request, error)

    def fleet(self, request: Request, source: PageSource) -> Response:
        """Show the newest run of each job, or of those with the labels in the address."""
        labels = {name: value for name, value in request.query_params.items() if name not in ("sort", "token")}
        sort = request.query_params.get("sort", "")
        jobs = fleet.fleet(source.query, sort, labels)
        live = any(not job.has_ended for job in jobs)
        return self._page(
            "fleet.html", jobs=jobs, sort=sort or fleet.SORTS[0], most=fleet.MOST_JOBS,
            every=LIVE_S if live else STILL_S,
            chosen=labels,
        )  # fmt: skip

    async def job_or_file(self, request: Request) -> Response:
        """Show a page of a job, or send the file of a step or of a request."""
        parts = parts_of(request)
        if len(parts) != 4 or parts[1] not in ("step", "request") or parts[3] != TRACE:
            return await self.shared(self.of_job)(request)
        run = request.query_params.get("run", "")
        if parts[1] == "request":
            return await run_in_threadpool(request_trace, self._database, parts[0], run, parts[2])
        step, ranks = number_of("step", parts[2]), ranks_of(request)
        last = max(step, number_of("last", request.query_params.get("last", "") or parts[2]))
        return await run_in_threadpool(trace, self._database, parts[0], run, (step, last), ranks)

    def of_job(self, request: Request, source: Reading) -> Response:
        """Show a job, a rank of it, or a step of it."""
        return self._jobs.answer(request, source) or self.not_found(request, None)

    def hosts(self, request: Request, source: PageSource) -> Response:
        """Show the hosts that held jobs back or are at fault."""
        since = request.query_params.get("since", "")
        intro = "Hosts over all jobs: those whose ranks were late, whatever the cause, and those whose hardware failed."
        return self._board(boards.hosts(source, since), "Hosts", intro, since)

    def host(self, request: Request, source: PageSource) -> Response:
        """Show one host over all jobs."""
        name = request.path_params["name"]
        intro = "Jobs that ran here and what their ranks here cost; faults of the hardware; health checks."
        return self._board(boards.host(source, name), name, intro, None, [("Hosts", "/hosts")])

    def costs(self, request: Request, source: PageSource) -> Response:
        """Show what runs cost, and how much of that was lost."""
        since = request.query_params.get("since", "")
        price = f"At {self._price:g} per GPU-hour." if self._price else (
            "No price is set, so money is not known: DRUMLINE_STREAM__PRICE_PER_GPU_HOUR.")  # fmt: skip
        return self._board(boards.costs(source, since, self._price), "Costs", price, since)

    def _board(
        self,
        parts: list[boards.BoardPart],
        title: str,
        intro: str,
        since: str | None,
        crumbs: Sequence[tuple[str, str]] = (),
    ) -> Response:
        return self._page(
            "board.html", title=title, intro=intro, parts=parts, since=since, crumbs=crumbs,
            most=question_form.MOST_ROWS, every=0,
        )  # fmt: skip

    def questions(self, _: Request) -> Response:
        """List the named questions."""
        return self._page("questions.html", themes=question_form.themes(), every=0)

    async def question_or_file(self, request: Request) -> Response:
        """Show the form of a question, or send its answer as a file."""
        sent = dict(request.query_params)
        if (ending := sent.pop("format", "")) not in question_form.FILES:
            return await self.shared(self.question)(request)
        named = named_query(request.path_params["name"])
        return await run_in_threadpool(download, self._database, named, sent, ending)

    def question(self, request: Request, source: PageSource) -> Response:
        """Show the form of a question, and its answer once it was sent."""
        named = named_query(request.path_params["name"])
        sent = dict(request.query_params)
        sent.pop("format", "")
        answer = question_form.answer(source, named, sent) if sent else None
        jobs = self._job_names(source)
        command = " ".join(
            ["drumline sql", named.name, *(f"{option(k)} {shlex.quote(v)}" for k, v in sent.items() if v.strip())]
        )
        query = urlencode(sent)
        return self._page(
            "question.html", q=named, sent=sent, answer=answer, most=question_form.MOST_ROWS, jobs=jobs,
            command=command, query=query, hint=question_form.hint, is_time=is_time,
            files=list(question_form.FILES), every=0, status=400 if answer and answer.problem else 200,
        )  # fmt: skip

    def causes(self, _: Request) -> Response:
        """List the causes of verdicts and the reasons of a standstill."""
        return self._page("causes.html", causes=guide.by_cause(), every=0)

    def cause(self, request: Request) -> Response:
        """Explain one cause and its details: the target of links in alerts."""
        name = request.path_params["name"]
        entries = guide.by_cause().get(name)
        if entries is None:
            return self.not_found(request, None)
        return self._page("cause.html", name=name, entries=entries, every=0)

    def alert(self, request: Request) -> Response:
        """Explain one alert rule of Grafana (by its uid) or Prometheus (by its name): the target of `runbook_url`."""
        if values := guide.alert(request.path_params["name"]):
            return self._page("alert.html", **values, every=0)
        return self.not_found(request, None)

    def static(self, request: Request) -> Response:
        """Return the style sheet or the script."""
        content, media = self._files.get(request.path_params["name"], ("", ""))
        if not media:
            return self.not_found(request, None)
        return Response(content, media_type=media, headers={"Cache-Control": "max-age=3600"})

    def health(self, _: Request) -> Response:
        """Answer a probe; it does not query."""
        return Response("ok\n", media_type="text/plain")

    def not_found(self, request: Request, _: Exception | None) -> Response:
        """Answer for an address that is no page."""
        return self._missing(404, f"There is no page {request.url.path}")

    def problem(self, _: Request, error: Exception) -> Response:
        """Answer for a value that is no run, time, number or question; or show what to start.

        Then the page comes by itself when the server answers.
        """
        if isinstance(error, NoSuchRun | FileRejected):
            return self._missing(404 if isinstance(error, NoSuchRun) else 503, str(error))
        if not isinstance(error, ClickHouseFailed | StackError):
            return self._missing(400, str(error))
        code = getattr(error, "code", 0)
        answers = bool(code) and not is_missing(error)
        return self._page(
            "down.html",
            status=500 if answers else 503,
            message=with_hint(error),
            heading="has no tables yet" if is_missing(error) else "rejects the query" if answers else "does not answer",
            is_away=not code,
            is_local=not self._settings.clickhouse.url,
            every=LIVE_S,
        )

    def _missing(self, status: int, message: str, jobs: list[str] | None = None) -> Response:
        return self._page("missing.html", status=status, message=message, jobs=jobs or [], every=0)

    def _job_names(self, source: PageSource) -> list[str]:
        return [row["job"] for row in source.query(JOBS, {"job": "", "most": fleet.MOST_JOBS})]

    def _page(self, template: str, *, status: int = 200, **variables: Any) -> Response:
        now = f"{datetime.now(UTC):%H:%M:%S} UTC"
        return HTMLResponse(self._environment.get_template(template).render(now=now, **variables), status)


def _fleet_url(chosen: Mapping[str, str]) -> str:
    return f"/?{urlencode(chosen)}" if chosen else "/"


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _signed(value: float) -> str:
    return "0.00" if abs(value) < 0.005 else f"{value:+,.2f}"
