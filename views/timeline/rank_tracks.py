"""Tracks of one rank in a trace: streams of its GPU, counters of the GPU, sampled Python stacks.

`scope` of each: job, run, rank, and since and until in ns since the epoch. `shift`: added to all times; ns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from drumline.views.report.data import Query, Row
from drumline.views.report.flame_graph import frame_parts
from drumline.views.timeline import queries
from drumline.views.timeline.chrome_writer import ChromeWriter
from drumline.views.timeline.lanes import Span
from drumline.views.timeline.trace_writer import TraceWriter

Writer = TraceWriter | ChromeWriter
#: Most rows of a trace. A million slices make some 100 MB, which Perfetto's page still opens.
MOST_ROWS = 1_000_000
#: GPU samples this long before and after the steps are shown: NVML is read once a second; ns.
AROUND_NS = 2_000_000_000
#: Column -> (name of the counter, unit, factor).
COUNTERS = {
    "util_gpu": ("GPU busy", "%", 1.0), "sm_active": ("SMs active", "%", 1.0),
    "tensor_active": ("tensor cores", "%", 1.0), "dram_active": ("memory bandwidth", "%", 1.0),
    "sm_clock": ("SM clock", "MHz", 1.0), "power_mw": ("power", "W", 1e-3), "temperature": ("temperature", "C", 1.0),
    "memory_used": ("memory used", "GB", 1e-9), "pcie_rx_kbps": ("PCIe received", "MB/s", 1e-3),
    "pcie_tx_kbps": ("PCIe sent", "MB/s", 1e-3), "nvlink_rx_kbps": ("NVLink received", "MB/s", 1e-3),
    "nvlink_tx_kbps": ("NVLink sent", "MB/s", 1e-3),
}  # fmt: skip


class TooMuch(ValueError):
    """More rows than a trace may have; the message states how to ask for less."""


def add_streams(writer: Writer, query: Query, scope: Row, process: int, order: Iterator[int], shift: int) -> None:
    """Add a track a stream, with its kernels and copies. Raises the query's errors."""
    for stream, spans in _streams(query, scope, shift).items():
        writer.spans(process, f"stream {stream}", next(order), spans)


def add_counters(writer: Writer, query: Query, scope: Row, process: int, order: Iterator[int], shift: int) -> None:
    """Add a track a counter of the rank's GPU. Raises the query's errors."""
    samples = query(
        queries.DEVICES, {**scope, "since": scope["since"] - AROUND_NS, "until": scope["until"] + AROUND_NS}
    )
    for column, (name, unit, factor) in COUNTERS.items():
        values = ((at["at"] + shift, at[column] * factor) for at in samples if at[column] is not None)
        writer.counter(process, name, unit, next(order), values)


def add_samples(writer: Writer, query: Query, scope: Row, process: int, order: Iterator[int], shift: int) -> None:
    """Add a track a thread: the samplings, and in each its stacks, the most frequent first.

    Of a sampling only the number of each stack is stored, not when each was seen. So their places in it show shares of
    its time, not moments. Raises the query's errors.
    """
    stacks = query(queries.STACKS, scope)
    for (thread, number), rows in groupby(stacks, lambda row: (row["thread"], row["thread_id"])):
        samplings = [(begin, ns, list(of)) for (begin, ns), of in groupby(rows, lambda row: (row["begin"], row["ns"]))]
        name, place = f"Python {thread or number}", next(order)
        total = [Span(begin + shift, begin + shift + ns, "sampling") for begin, ns, _ in samplings]
        writer.spans(process, name, place, total)
        track = writer.track(process, f"{name}, stacks", next(order))
        for begin, ns, sampled in samplings:
            samples, seen = sum(row["samples"] for row in sampled), 0
            for row in sampled:
                at = begin + shift + ns * seen // max(samples, 1)
                writer.sample(track, at, map(frame_parts, row["stack"].split(";")), row["samples"])
                seen += row["samples"]


def _streams(query: Query, scope: Row, shift: int) -> dict[int, list[Span]]:
    spans: dict[int, list[Span]] = defaultdict(list)
    for row in query(queries.KERNELS, scope):
        grid, block = (f"{row[f'{of}_x']}x{row[f'{of}_y']}x{row[f'{of}_z']}" for of in ("grid", "block"))
        columns = ("name", "family", "registers", "shared", "correlation", "graph")
        spans[row["stream"]].append(span_of(row, shift, row["short"], columns, (("grid", grid), ("block", block))))
    for row in query(queries.COPIES, scope):
        columns = ("bytes", "source", "target", "is_async", "correlation", "graph")
        speed = row["bytes"] / row["ns"] if row["ns"] else 0.0
        spans[row["stream"]].append(span_of(row, shift, row["direction"], columns, (("GB/s", speed),)))
    return dict(sorted(spans.items()))


def span_of(row: Row, shift: int, name: str, columns: tuple[str, ...], more: tuple[tuple[str, Any], ...] = ()) -> Span:
    """Return the span of a row with `begin` and `ns`; columns of it are its notes."""
    begin = row["begin"] + shift
    return Span(begin, begin + row["ns"], name, (*((column, row[column]) for column in columns), *more))
