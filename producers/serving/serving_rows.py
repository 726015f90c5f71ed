"""Rows of gpu.iteration.v1 and gpu.request.v1, from what an engine's process tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drumline.producers.activity.table import Table
from drumline.producers.batching.sample_envelopes import encoded, in_bounds
from drumline.producers.engines.iteration_messages import PHASES
from drumline.producers.serving.request_shares import UNKNOWN, OpenRequest
from drumline.schemas.topics import Topic

Row = dict[str, Any]


def iteration_row(engine: str, role: str, numbers: Sequence[int], phase: int, duration_ns: int) -> Row:
    """Return the row of an iteration, without its GPU time. `numbers`: of its message, from `number` on."""
    (number, start_ns, _, gap_ns, schedule_ns, output, drafts, used, total, waiting, preempted, *_) = numbers
    return {
        "engine": engine, "role": role, "phase": PHASES[phase] if phase < len(PHASES) else "other", "iteration": number,
        "start_ns": start_ns, "duration_ns": duration_ns, "gap_ns": gap_ns, "schedule_ns": schedule_ns,
        "gpu_ns": UNKNOWN, "gpu_idle_ns": UNKNOWN, "output_tokens": output, "draft_tokens": drafts, "kv_used": used,
        "kv_total": total, "waiting": waiting, "preempted": preempted,
    }  # fmt: skip


def request_row(engine: str, request: OpenRequest) -> Row:
    """Return the row of a request that is over."""
    facts, end, start_ns = request.facts, request.end, request.start_ns
    texts = {name: _text(facts.get(name)) for name in ("traceparent", "model", "adapter", "tenant", "route")}
    return {
        **texts,
        "request": _text(facts.get("id")),
        "engine": engine,
        "outcome": _text(end.get("outcome")),
        "start_ns": start_ns,
        "duration_ns": max(request.end_ns - start_ns, 0),
        "queue_ns": _since(start_ns, request.first_start_ns),
        "ttft_ns": _since(start_ns, request.first_token_ns),
        "prompt_tokens": _count(end.get("prompt_tokens", facts.get("prompt_tokens"))),
        "cached_tokens": _count(end.get("cached_tokens")),
        "output_tokens": max(_count(end.get("output_tokens")), 0),
        "iterations": request.iterations,
        "first_iteration": request.first_iteration,
        "last_iteration": request.last_iteration,
        "preemptions": max(_count(end.get("preemptions")), 0),
        "gpu_ns": request.gpu_ns,
        "prefill_gpu_ns": request.prefill_gpu_ns,
        "host_ns": request.host_ns,
    }


def table_of(topic: Topic, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return rows as columns; numbers out of their bounds are unknown."""
    columns, dictionaries = encoded(topic, [{**row, **in_bounds(topic, _numbers(row))} for row in rows])
    return Table(columns, dictionaries)


def _numbers(row: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in row.items() if isinstance(value, int)}


def _since(start_ns: int, time_ns: int) -> int:
    return max(time_ns - start_ns, 0) if time_ns >= 0 else UNKNOWN


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _count(value: Any) -> int:
    return value if isinstance(value, int) else UNKNOWN
