"""A span of steps of a job as a Perfetto trace: a process a rank, from the rows that are stored.

Ranks are aligned by the ends of their collectives; the clock of the lowest rank counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import count, groupby

from drumline.views.report.data import NoSuchRun, Query, Row, find_run
from drumline.views.timeline import queries
from drumline.views.timeline.alignment import clock_offsets
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


@dataclass(frozen=True)
class Timeline:
    """Holds a trace. `unaligned`: ranks that share no collective with the lowest one and keep their host's clock."""

    run: str
    ranks: list[int]
    unaligned: list[int]
    slices: int
    trace: bytes


@dataclass(frozen=True)
class _RankSteps:
    """The steps of a rank. since, until: from the first begin to the last end, on host or GPU; its host's clock."""

    rank: int
    rows: list[Row]
    since: int
    until: int
    shift: int


def timeline(
    query: Query,
    job: str,
    run: str,
    first: int,
    last: int,
    ranks: Collection[int],
    most_rows: int | None = None,
    form: type[Writer] = TraceWriter,
) -> Timeline:
    """Return the trace of some steps; `run` "": the newest, `ranks` empty: all.

    `most_rows`: of the trace; None = MOST_ROWS. `form`: the writer of its format. Raises NoSuchRun, TooMuch, and the
    errors of `query`.
    """
    chosen, _ = find_run(query, job, run)
    scope = {"job": job, "run": chosen["run"], "first": first, "last": last}
    steps = [row for row in query(queries.STEPS, scope) if not ranks or row["rank"] in ranks]
    missing = sorted(set(ranks) - {row["rank"] for row in steps})
    if not steps or missing:
        raise NoSuchRun(_nothing(query, scope, missing))
    collectives = [row for row in query(queries.COLLECTIVES, scope) if not ranks or row["rank"] in ranks]
    shifts = clock_offsets({row["rank"] for row in steps}, collectives)
    drawn = [_rank_steps(rank, list(rows), shifts) for rank, rows in groupby(steps, lambda row: row["rank"])]
    scopes = {of.rank: {**scope, "rank": of.rank, "since": of.since, "until": of.until} for of in drawn}
    size = len(steps) + len(collectives) + sum(query(queries.COUNTS, values)[0]["rows"] for values in scopes.values())
    most_rows = most_rows or MOST_ROWS
    if size > most_rows:
        raise TooMuch(
            f"these steps have {size:,} rows on {len(drawn)} ranks; a trace has at most {most_rows:,}: "
            "name fewer --steps or --ranks"
        )
    verdicts = query(queries.VERDICTS, scope)
    writer = form(min(of.since + of.shift for of in drawn))
    by_rank = {rank: list(rows) for rank, rows in groupby(collectives, lambda row: row["rank"])}
    flows: dict[tuple[str, int, int], int] = {}
    for of in drawn:
        calls = {
            communicator: [_collective(row, of.shift, flows) for row in rows]
            for communicator, rows in groupby(by_rank.get(of.rank, []), lambda row: str(row["communicator"]))
        }
        _add_rank(writer, query, scopes[of.rank], of, calls, [row for row in verdicts if row["rank"] == of.rank])
    _add_job(writer, job, drawn[0], [row for row in verdicts if row["rank"] == -1])
    unaligned = [of.rank for of in drawn if of.rank not in shifts]
    return Timeline(str(chosen["run"]), [of.rank for of in drawn], unaligned, writer.slices, writer.serialized())


def _nothing(query: Query, scope: Row, ranks: list[int]) -> str:
    """Return why there is nothing to draw, with the steps that there are."""
    [extent] = query(queries.EXTENT, scope)
    named = f" of rank {', '.join(map(str, ranks[:10]))}" if ranks else ""
    extent_text = f"there are steps {extent['first']} to {extent['last']}" if extent["rows"] else "it has no steps"
    steps = f"{scope['first']} to {scope['last']}"
    return f"run {scope['run']!r} of job {scope['job']!r} has no step {steps}{named}; {extent_text}"


def _rank_steps(rank: int, rows: list[Row], shifts: dict[int, int]) -> _RankSteps:
    since = min(min(row["begin"], row["gpu_begin"] if row["gpu_ns"] > 0 else row["begin"]) for row in rows)
    until = max(max(row["begin"] + row["ns"], row["gpu_begin"] + max(row["gpu_ns"], 0)) for row in rows)
    return _RankSteps(rank, rows, since, until, shifts.get(rank, 0))


def _add_rank(
    writer: Writer, query: Query, scope: Row, of: _RankSteps, calls: dict[str, list[Span]], verdicts: list[Row]
) -> None:
    row, shift = of.rows[0], of.shift
    labels = [str(row[name]) for name in ("host", "gpu_uuid", "process_id") if row[name]]
    process = writer.process(f"rank {of.rank}", of.rank, labels)
    order = count()
    writer.spans(process, "verdicts", next(order), _verdicts(verdicts, of.rows, shift))
    writer.spans(process, "steps on the host", next(order), _host_steps(of.rows, shift))
    writer.spans(process, "steps on the GPU", next(order), _gpu_steps(of.rows, shift))
    for domain, rows in groupby(query(queries.RANGES, scope), lambda row: row["domain"]):
        name = f"NVTX {domain}".strip()
        ranges = (span_of(row, shift, row["name"], ("step",)) for row in rows)
        writer.spans(process, name, next(order), ranges, nests=True)
    for communicator, spans in calls.items():
        writer.spans(process, f"NCCL {communicator}", next(order), spans)
    add_streams(writer, query, scope, process, order, shift)
    add_counters(writer, query, scope, process, order, shift)
    add_samples(writer, query, scope, process, order, shift)


def _add_job(writer: Writer, job: str, first: _RankSteps, verdicts: list[Row]) -> None:
    """Add verdicts about the job as a whole, over the steps of the lowest rank."""
    if verdicts:
        process = writer.process(f"job {job}", 1 << 20, [])  # below all ranks
        writer.spans(process, "verdicts", 0, _verdicts(verdicts, first.rows, first.shift))


def _collective(row: Row, shift: int, flows: dict[tuple[str, int, int], int]) -> Span:
    begin = row["begin"] + shift
    notes = tuple((name, row[name]) for name in ("bytes", "step", "ordinal", "covered_ns", "communicator", "source"))
    flow = flows.setdefault((row["communicator"], row["step"], row["ordinal"]), len(flows) + 1)
    return Span(begin, begin + row["ns"], row["operation"] or "collective", notes, flow)


def _host_steps(rows: list[Row], shift: int) -> Iterator[Span]:
    return (span_of(row, shift, f"step {row['step']}", ("step", "source")) for row in rows)


def _gpu_steps(rows: list[Row], shift: int) -> Iterator[Span]:
    columns = ("compute_ns", "copy_ns", "comm_exposed_ns", "idle_ns", "kernels", "collectives", "skipped")
    for row in rows:
        if row["gpu_ns"] > 0:
            begin = row["gpu_begin"] + shift
            yield Span(
                begin, begin + row["gpu_ns"], f"step {row['step']}", tuple((name, row[name]) for name in columns)
            )


def _verdicts(verdicts: list[Row], steps: list[Row], shift: int) -> Iterator[Span]:
    """Yield verdicts over those of their steps that are drawn."""
    columns = ("severity", "cause", "detail", "confidence", "lost_ns", "lost_share", "first_step", "last_step")
    for row in verdicts:
        inside = [step for step in steps if row["first_step"] <= step["step"] <= row["last_step"]]
        if inside:
            begin, end = min(s["begin"] for s in inside), max(s["begin"] + s["ns"] for s in inside)
            name = ": ".join(text for text in (row["state"], row["cause"]) if text)
            yield Span(begin + shift, end + shift, name, tuple((column, row[column]) for column in columns))
