"""Rows of gpu.request.v1 as a reader of Kafka has them."""

from __future__ import annotations

from typing import Any

from support.verdict_worlds import NOW

from drumline.producers.serving.serving_rows import table_of
from drumline.schemas.batch import Batch
from drumline.schemas.record_table import BatchTable, RecordTable
from drumline.schemas.topics import Topic


def engine_request(name: str, traceparent: str, **changes: Any) -> dict[str, Any]:
    """A request: 100 ns in the queue, 300 ns of prefill, 500 ns of decode."""
    texts = dict.fromkeys(("adapter", "tenant", "route"), "") | {"engine": "e", "model": "m", "outcome": "stop"}
    numbers = dict.fromkeys(("cached_tokens", "gpu_ns", "prefill_gpu_ns", "host_ns"), -1) | {"prompt_tokens": 3}
    numbers |= {"start_ns": NOW, "duration_ns": 900, "queue_ns": 100, "ttft_ns": 400, "output_tokens": 7}
    numbers |= {"iterations": 7, "first_iteration": 1, "last_iteration": 7, "preemptions": 0}
    return {"request": name, "traceparent": traceparent, **texts, **numbers, **changes}


def requests_table(rows: list[dict[str, Any]]) -> RecordTable:
    """The rows as one record of job j."""
    rows_of = table_of(Topic.REQUEST, rows)
    envelope = {"job": "j", "run": "r", "host": "h", "rows": len(rows), **rows_of.dictionaries}
    return BatchTable.of([Batch(Topic.REQUEST, envelope, rows_of.columns)])
