"""Requests of an inference engine as a Perfetto trace: what each waited for, and what its engine and GPU did then.

Times are of the engine's host. Arrows join an iteration of a request with that of its engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, groupby

from drumline.views.report.data import NoSuchRun, Query, Row, find_run
from drumline.views.report.request_parts import request_parts
from drumline.views.timeline import queries
from drumline.views.timeline.lanes import Span
from drumline.views.timeline.rank_tracks import (
    MOST_ROWS,
    TooMuch,
    Writer,
    add_counters,
    add_samples,
    add_streams,
    span_of,
)
from drumline.views.timeline.trace_writer import TraceWriter

#: Requests of a trace: a process each in Perfetto, above those of engines.
MOST_REQUESTS = 100
_ABOUT_REQUEST = (
    "outcome", "model", "adapter", "tenant", "route", "prompt_tokens", "cached_tokens", "output_tokens", "iterations",
    "preemptions", "gpu_ns", "prefill_gpu_ns", "traceparent",
)  # fmt: skip
_ABOUT_ITERATION = (
    "iteration", "requests", "prefill_requests", "prefill_tokens", "decode_tokens", "output_tokens", "draft_tokens",
    "waiting", "kv_used", "kv_total", "preempted", "adapters", "gpu_ns", "gpu_idle_ns", "schedule_ns", "gap_ns",
)  # fmt: skip


@dataclass(frozen=True)
class RequestTimeline:
    """Holds a trace. `requests`: their ids, the earliest first. `iterations`: of all engines and workers in it."""

    run: str
    requests: list[str]
    iterations: int
    slices: int
    trace: bytes


def request_timeline(
    query: Query,
    job: str,
    run: str,
    request: str = "",
    trace: str = "",
    most_rows: int | None = None,
    form: type[Writer] = TraceWriter,
) -> RequestTimeline:
    """Return the trace of a request, or of the requests of a caller's trace; `run` "": the newest.

    `trace`: trace id of W3C, 32 hexadecimal digits. `most_rows`: of the trace; None = MOST_ROWS. `form`: the writer of
    its format. Raises NoSuchRun, TooMuch, and the errors of `query`.
    """
    chosen, _ = find_run(query, job, run)
    scope = {"job": job, "run": str(chosen["run"])}
    wanted = {"request": request, "trace": trace.lower()}
    requests = query(queries.REQUESTS, {**scope, **wanted, "most": MOST_REQUESTS + 1})
    if not requests:
        named = f"request {request!r}" if request else f"request of trace {trace!r}"
        raise NoSuchRun(
            f"run {scope['run']!r} of job {job!r} has no {named} that has ended; "
            "`drumline sql serving-requests` lists them"
        )
    if len(requests) > MOST_REQUESTS:
        raise TooMuch(f"more than {MOST_REQUESTS} requests; name one with --request")
    most = most_rows or MOST_ROWS
    drawn = {
        **scope,
        "since": min(row["begin"] for row in requests),
        "until": max(row["begin"] + row["ns"] for row in requests),
    }
    of_engines = {
        "processes": sorted({str(row["process_id"]) for row in requests}),
        "hosts": sorted({str(row["host"]) for row in requests}),
    }
    iterations = query(queries.ITERATIONS, {**drawn, **of_engines, "most": most + 1})
    ranks = {(row["process_id"], row["rank"]): None for row in (*requests, *iterations)}
    size = len(iterations) + sum(
        query(queries.COUNTS, {**drawn, "rank": rank})[0]["rows"] for rank in {rank for _, rank in ranks}
    )
    if size > most:
        raise TooMuch(f"more than {most:,} rows while these requests ran; name one with --request")
    writer = form(drawn["since"])
    flows: dict[tuple[str, int], int] = {}
    by_process = {process: list(rows) for process, rows in groupby(iterations, lambda row: str(row["process_id"]))}
    for number, row in enumerate(requests):
        _add_request(writer, number, row, by_process.get(str(row["process_id"]), []), flows)
    with_gpu: set[int] = set()
    for number, rows in enumerate(by_process.values(), len(requests)):
        _add_engine(writer, query, drawn, number, rows, flows, rows[0]["rank"] not in with_gpu)
        with_gpu.add(rows[0]["rank"])
    names = [str(row["request"]) for row in requests]
    return RequestTimeline(scope["run"], names, len(iterations), writer.slices, writer.serialized())


def _add_request(
    writer: Writer, number: int, row: Row, iterations: list[Row], flows: dict[tuple[str, int], int]
) -> None:
    labels = [text for text in (str(row["engine"]), str(row["model"]), str(row["host"])) if text]
    process = writer.process(f"request {row['request']}", number, labels)
    writer.spans(process, "request", 0, [span_of(row, 0, "request", _known(row, _ABOUT_REQUEST))])
    writer.spans(process, "waits and computes", 1, _parts(row))
    first, last = row["first_iteration"], row["last_iteration"]
    if first is not None:
        inside = (of for of in iterations if first <= of["iteration"] <= (first if last is None else last))
        writer.spans(process, "iterations from its first to its last", 2, _iterations(inside, flows))


def _parts(row: Row) -> Iterator[Span]:
    begin = row["begin"]
    queue_ns, first_ns = (-1 if row[name] is None else row[name] for name in ("queue_ns", "ttft_ns"))
    for name, since, until in request_parts(begin, begin + row["ns"], queue_ns, first_ns):
        yield Span(since, until, name)


def _iterations(rows: Iterator[Row], flows: dict[tuple[str, int], int]) -> Iterator[Span]:
    for row in rows:
        flow = flows.setdefault((str(row["process_id"]), row["iteration"]), len(flows) + 1)
        notes = tuple((name, row[name]) for name in _known(row, _ABOUT_ITERATION))
        yield Span(row["begin"], row["begin"] + row["ns"], str(row["phase"]), notes, flow)


def _add_engine(
    writer: Writer, query: Query, scope: Row, number: int, rows: list[Row], flows: dict[tuple[str, int], int], gpu: bool
) -> None:
    """Add an engine or a worker. `gpu`: with the rows of its rank, which processes of one rank share."""
    row, order = rows[0], count()
    labels = [str(row[name]) for name in ("host", "gpu_uuid", "process_id") if row[name]]
    process = writer.process(f"{row['engine']} {row['role']}, rank {row['rank']}", number, labels)
    writer.spans(process, "iterations", next(order), _iterations(iter(rows), flows))
    scheduled = (
        Span(of["begin"], of["begin"] + of["schedule_ns"], "scheduler") for of in rows if of["schedule_ns"] is not None
    )
    writer.spans(process, "scheduler", next(order), scheduled)
    for name in ("waiting", "kv_used"):
        values = ((of["begin"], float(of[name])) for of in rows if of[name] is not None)
        writer.counter(
            process, {"waiting": "requests in the queue", "kv_used": "KV blocks used"}[name], "", next(order), values
        )
    if gpu:
        gpu_scope = {**scope, "rank": row["rank"]}
        add_streams(writer, query, gpu_scope, process, order, 0)
        add_counters(writer, query, gpu_scope, process, order, 0)
        add_samples(writer, query, gpu_scope, process, order, 0)


def _known(row: Row, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns with a value."""
    return tuple(name for name in names if row[name] not in (None, ""))
