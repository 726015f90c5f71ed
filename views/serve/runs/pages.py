"""Pages below /job: a job, a rank or a step of it, or two of its runs."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote, unquote_plus

from starlette.requests import Request
from starlette.responses import Response

from drumline.views.report import charts, text
from drumline.views.report.data import NoSuchRun
from drumline.views.report.explanation import hang_lines
from drumline.views.report.gaps import no_verdict
from drumline.views.report.page import DEVICES, draw_ahead, sections
from drumline.views.serve import boards, timeline
from drumline.views.serve.addresses import job_url, number_of, times_of, trace_url
from drumline.views.serve.job_page import MOST_RANKS, JobPage, is_live, job_page
from drumline.views.serve.question_form import MOST_ROWS
from drumline.views.serve.rank_page import PARTS, rank_page
from drumline.views.serve.reading import PageSource, Reading
from drumline.views.serve.runs.chart_values import chart_values, over_time
from drumline.views.serve.runs.step_picker import step_picker
from drumline.views.serve.runs.trace import MOST_STEPS
from drumline.views.serve.views import TICK_S

#: Time between two refreshes of a page while data come, and while none come; s.
LIVE_S, STILL_S = TICK_S, 20


def parts_of(request: Request) -> list[str]:
    """Return the parts of the path behind /job: names may have any character, slashes too.

    Links of Grafana's alerts write + for a space (Go's urlquery); drumline's own write %20, and %2B for a +.
    """
    path = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    return [unquote_plus(part) for part in path.decode("latin-1").split("?")[0].strip("/").split("/")][1:]


class JobPages:
    """The pages of jobs; safe for several threads. `render`: takes a template and its variables."""

    def __init__(self, render: Callable[..., Response], price: float) -> None:
        self._render = render
        self._price = price

    def answer(self, request: Request, source: Reading) -> Response | None:
        """Return the page of an address; None for one that is no page. Raises BadAddress and errors of queries."""
        parts, run = parts_of(request), request.query_params.get("run", "")
        if len(parts) == 1 and parts[0]:
            return self._job(request, source, parts[0], run)
        if len(parts) == 2 and parts[1] == "serving":
            return self._serving(source, parts[0], run)
        if len(parts) == 3 and parts[1] == "rank":
            return self._rank(request, source, parts[0], run, number_of("rank", parts[2]))
        if len(parts) == 3 and parts[1] == "step":
            return self._step(request, source, parts[0], run, number_of("step", parts[2]))
        if len(parts) == 2 and parts[1] == "compare":
            return self._compare(request, source, parts[0], run)
        if len(parts) == 2 and parts[1] == "step":  # of the form, which has the number in its query
            return self._step(request, source, parts[0], run, number_of("step", _given(request, "step")))
        return None

    def _job(self, request: Request, source: Reading, job: str, run: str) -> Response:
        since, until = times_of(request)
        ahead = partial(draw_ahead, with_slim=True)
        page = job_page(source.query, job, run, since, until, self._price, ahead, deep=not source.hurries())
        shown = len(page.ranks) if request.query_params.get("ranks") == "all" else MOST_RANKS
        stands = [row for row in page.data.hangs if row["lasts"]]
        # What the box of a standstill states, the summary does not state again.
        rest = replace(page.data, hangs=[row for row in page.data.hangs if not row["lasts"]])
        span, drawn = _span(request), sections(page.data, with_slim=True)
        return self._render(
            "job.html", p=page, shown=shown, given_run=run, summary=text.summary(rest, most=1), span=span,
            hangs=[hang_lines([row], job) for row in stands],
            rank_url=lambda rank: job_url(job, run, rank=rank, **span), chart_values=chart_values(page.data),
            file=_file_of_steps(page),
            every=LIVE_S if page.is_live or source.hurried else STILL_S,
            **{k: v for k, v in drawn.items() if k != "text"},
        )  # fmt: skip

    def _rank(self, request: Request, source: PageSource, job: str, run: str, rank: int) -> Response:
        since, until = times_of(request)
        page = rank_page(source.query, job, run, rank, since, until)
        name = page.run["run"]
        units = {caption: unit for unit, caption in DEVICES.values()}
        drawn = None
        if page.bad_step:
            try:
                step = timeline.step_page(source.query, job, name, page.bad_step[0], rank)
                drawn = (step, _safe(timeline.svgs(step)))
            except NoSuchRun:
                drawn = None
        return self._render(
            "rank.html", p=page, given_run=run, step=drawn, parts=PARTS, kinds=timeline.KINDS, span=_span(request),
            devices=[
                (caption, _safe(charts.svg(spec)), over_time(spec, page.since, units[caption]))
                for caption, spec in page.devices.items()
            ],
            sentence=no_verdict(page.windows, rank, int(page.run["ranks"])),
            rank_url=lambda number: job_url(job, run, rank=number),
            every=LIVE_S if is_live(source.query, job, name) else STILL_S,
            scope=f"--job {shlex.quote(job)} --run {shlex.quote(name)}",
        )  # fmt: skip

    def _step(self, request: Request, source: PageSource, job: str, run: str, step: int) -> Response:
        names = ("rank", "last_rank", "last", "from_step", "to_step")
        given = {name: number_of(name, value) for name in names if (value := _given(request, name))}
        rank, last = given.get("rank"), given.get("last", step)
        latest = None
        if rank is not None and last > step:
            ranks = (rank, given.get("last_rank", rank))
            latest = timeline.latest_step(source.query, job, run, (step, last), ranks)
        chosen, rank = latest or (step, rank)
        page = timeline.step_page(source.query, job, run, chosen, rank)
        picker = step_picker(source.query, page, given.get("from_step"), given.get("to_step"))
        strips = [picker.spec(), picker.spec(charts.SLIM)] if picker.rows else []
        return self._render(
            "step.html",
            p=page,
            picker=picker,
            strip=_safe("".join(map(charts.svg, strips))),
            given_run=run,
            svg=_safe(timeline.svgs(page)),
            kinds=timeline.KINDS,
            every=0,
            file=trace_url(job, page.run["run"], page.step, [row["rank"] for row in page.drawn]),
            within=(step, last) if last > step else None,
        )

    def _serving(self, source: PageSource, job: str, run: str) -> Response:
        return self._render(
            "board.html", title="Inference engines", parts=boards.serving(source, job, run), since=None,
            intro=f"Run {run or 'the newest'}. A request leads to its time line, a file for https://ui.perfetto.dev.",
            crumbs=[("Fleet", "/"), (job, job_url(job, run))], most=MOST_ROWS, every=STILL_S,
        )  # fmt: skip

    def _compare(self, request: Request, source: PageSource, job: str, run: str) -> Response:
        other_run = _given(request, "other_run")
        return self._render(
            "board.html", title="Two runs side by side", parts=boards.runs(source, job, run, other_run), since=None,
            intro=f"a: run {run or 'the newest'}; b: run {other_run or 'the one before'}.",
            crumbs=[("Fleet", "/"), (job, job_url(job, run))], most=MOST_ROWS, every=0,
        )  # fmt: skip


def _file_of_steps(page: JobPage) -> str:
    """Return the address of the shown steps as a file for Perfetto; "" where there are none, or too many."""
    steps, ranks = page.data.steps, page.some_ranks()
    if not page.data.step_times or not ranks or int(steps["last"]) - int(steps["first"]) >= MOST_STEPS:
        return ""
    return trace_url(page.data.job, page.data.run["run"], int(steps["first"]), ranks, int(steps["last"]))


def _span(request: Request) -> dict[str, Any]:
    """Return the time in an address, for the addresses of pages of the same time."""
    return {name: value for name in ("from", "to") if (value := _given(request, name))}


def _given(request: Request, name: str) -> str:
    return request.query_params.get(name, "").strip()


def _safe(svg: str) -> Any:
    from markupsafe import Markup

    return Markup(svg)
