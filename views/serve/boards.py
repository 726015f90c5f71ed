"""Pages that answer several named questions at a time: hosts, costs, and two runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from drumline.infra.clickhouse.queries import query as named_query
from drumline.views.serve import queries
from drumline.views.serve.addresses import job_url, request_url
from drumline.views.serve.question_form import MOST_ROWS, Answer, answer, with_numbers
from drumline.views.serve.reading import PageSource

#: Rows of each table, without the question's own page.
LIMIT = "50"
EMPTY = "Nothing is stored of this."
#: Column of a job -> that of its run in the same row, "" = none: the page is that of its newest.
_JOBS = {"job": "run", "worst_job": ""}
Links = Callable[[Sequence[str], Sequence[str]], list[str]]


def host_url(host: str) -> str:
    """Return the address of a host over all jobs."""
    return f"/host/{quote(host, safe='')}"


def links_of(names: Sequence[str], row: Sequence[str]) -> list[str]:
    """Return the address that each cell of a row leads to: a job, a run, a rank or a host; "" = none."""
    cells = dict(zip(names, row, strict=True))
    links = dict.fromkeys(names, "")
    for job, run in _JOBS.items():
        if cells.get(job):
            links[job] = job_url(cells[job])
            if cells.get(run):
                links[run] = job_url(cells[job], cells[run])
            rank = cells.get("worst_rank" if job == "worst_job" else "rank", "")
            if rank.isdigit():
                links["worst_rank" if job == "worst_job" else "rank"] = job_url(
                    cells[job], cells.get(run, ""), rank=int(rank)
                )
    if cells.get("host"):
        links["host"] = host_url(cells["host"])
    return [links[name] for name in names]


@dataclass(frozen=True)
class BoardPart:
    """A table with its heading. `question`: address of the same as a form and a file; "" = there is none.

    `links`: takes the names and a row, returns the address that each cell leads to; "" = none.
    `empty`: stands in place of no rows.
    """

    heading: str
    answer: Answer
    question: str
    links: Links = links_of
    empty: str = EMPTY


def hosts(source: PageSource, since: str) -> list[BoardPart]:
    """Return the hosts that held jobs back, and those at fault. `since`: as in a form; "" = ever."""
    sent = {"since": since, "limit": LIMIT}
    return [
        _part(source, "Held jobs back", "late-hosts", sent),
        _part(source, "Hardware at fault", "offenders", sent),
    ]


def host(source: PageSource, name: str) -> list[BoardPart]:
    """Return what ran on a host and was late there, its faults and its health checks, over all jobs."""
    sent = {"host": name, "limit": LIMIT}
    ran = with_numbers(*source.text(queries.HOST_JOBS, {"host": name}, MOST_ROWS))
    return [
        BoardPart("Jobs", ran, ""),
        _part(source, "Hardware at fault", "offenders", sent),
        _part(source, "Health checks", "checks", sent),
    ]


def costs(source: PageSource, since: str, price: float) -> list[BoardPart]:
    """Return the cost by team, by user and by run. `price`: of a GPU hour; 0 = none is set."""
    sent = {"since": since, "limit": LIMIT, "price": f"{price:g}"}
    return [
        _part(source, "By team", "cost-by-label", {**sent, "by": "team"}),
        _part(source, "By user", "cost-by-label", {**sent, "by": "user"}),
        _part(source, "By run", "cost", sent),
    ]


def runs(source: PageSource, job: str, run: str, other_run: str) -> list[BoardPart]:
    """Return two runs of a job side by side: steps, kernels, and how both develop."""
    sent = {"job": job, "run": run, "other_run": other_run}
    limited = {**sent, "limit": LIMIT}
    return [
        _part(source, "Steps", "compare-steps", sent),
        _part(source, "Kernels", "compare-kernels", limited),
        _part(source, "By minute", "compare-runs", limited),
    ]


def serving(source: PageSource, job: str, run: str) -> list[BoardPart]:
    """Return how the inference engines of a run do, what holds them up, what requests cost, and those that waited."""
    sent = {"job": job, "run": run, "limit": LIMIT}

    def requests(names: Sequence[str], row: Sequence[str]) -> list[str]:
        cells = dict(zip(names, row, strict=True))
        return [request_url(job, cells["run"], cells[name]) if name == "request" else "" for name in names]

    return [
        _part(source, "Engines", "serving", sent),
        _part(source, "What holds them up", "serving-verdicts", sent, empty="Nothing, in the minutes that are stored."),
        _part(source, "Cost", "serving-cost", sent),
        _part(source, "Adapters", "serving-adapters", sent),
        _part(source, "Requests that waited longest for their first token", "serving-requests", sent, requests),
    ]


def _part(
    source: PageSource, heading: str, name: str, sent: Mapping[str, str], links: Links = links_of, empty: str = EMPTY
) -> BoardPart:
    given = {key: value for key, value in sent.items() if value}
    answered = answer(source, named_query(name), given)
    return BoardPart(heading, answered, f"/question/{name}?{urlencode(given)}", links, empty)
