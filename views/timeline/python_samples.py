"""Python stacks of a sampling as weighted call stacks, a track a thread."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from drumline.views.report.data import Row
from drumline.views.report.flame_graph import frame_parts
from drumline.views.timeline.lanes import Span
from drumline.views.timeline.trace_writer import TraceWriter


def add_samples(writer: TraceWriter, process: int, order: Iterator[int], stacks: list[Row], shift: int) -> None:
    """Add a track a thread: the samplings, and in each its stacks, the most frequent first.

    Of a sampling only the number of each stack is stored, not when each was seen. So their places in it show shares of
    its time, not moments.
    """
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
