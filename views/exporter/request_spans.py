"""Spans of requests of inference engines, below the span of their caller (W3C trace context).

Pure. A request without a sampled context has none: nobody would find it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from drumline.schemas.model import model
from drumline.schemas.record_table import RecordTable
from drumline.schemas.topics import Topic
from drumline.views.report.request_parts import request_parts

#: Version 00: trace id, id of the caller's span, flags. Ids of zeros alone are none.
_TRACEPARENT = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1
#: Column -> attribute. Names of OpenTelemetry's conventions for generative AI, where there is one.
_TEXTS = {
    "request": "drumline.request", "adapter": "drumline.adapter", "tenant": "drumline.tenant",
    "route": "drumline.route", "engine": "drumline.engine", "model": "gen_ai.request.model",
    "outcome": "drumline.outcome",
}  # fmt: skip
_NUMBERS = {
    "prompt_tokens": "gen_ai.usage.input_tokens", "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "drumline.cached_tokens", "iterations": "drumline.iterations",
    "preemptions": "drumline.preemptions", "gpu_ns": "drumline.gpu_ns",
}  # fmt: skip
_DICTIONARIES = {column.name: column.dictionary for column in model(Topic.REQUEST).columns}


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """Holds a request. Times in ns since the epoch.

    `parts`: name, begin and end of queue, prefill and decode; those it did not reach are missing.
    """

    trace_id: int
    parent_id: int
    begin_ns: int
    end_ns: int
    parts: tuple[tuple[str, int, int], ...]
    attributes: dict[str, str | int]


def request_spans(table: RecordTable) -> Iterator[RequestSpan]:
    """Yield the spans of a record's requests (gpu.request.v1) that a caller's trace samples."""
    contexts = table.lists("traceparents")
    texts = {name: table.lists(_DICTIONARIES[name]) for name in _TEXTS}
    places = {name: table.text(name) for name in ("job", "run", "host")}
    columns = table.columns
    for row, part in enumerate(table.part_of.tolist()):
        context = _TRACEPARENT.fullmatch(contexts[part][columns["traceparent"][row]])
        if context is None or not int(context[3], 16) & _SAMPLED:
            continue
        attributes: dict[str, str | int] = {
            attribute: texts[name][part][columns[name][row]] for name, attribute in _TEXTS.items()
        }
        attributes |= {"drumline.job": places["job"][part], "drumline.run": places["run"][part]}
        attributes |= {"host.name": places["host"][part]}
        attributes |= {attribute: int(columns[name][row]) for name, attribute in _NUMBERS.items()}
        begin, ns, queue, first = (
            int(columns[name][row]) for name in ("start_ns", "duration_ns", "queue_ns", "ttft_ns")
        )
        yield RequestSpan(
            int(context[1], 16), int(context[2], 16), begin, begin + ns,
            tuple(request_parts(begin, begin + ns, queue, first)),
            {name: value for name, value in attributes.items() if value not in ("", -1)},
        )  # fmt: skip
