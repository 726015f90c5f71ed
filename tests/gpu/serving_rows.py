"""Rows of a spool, and what the parts of serving.py say of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from drumline.producers.spool.segment_format import DATA, SEGMENT_MAGIC, scan
from drumline.schemas.batch import Batch, decode
from drumline.schemas.model import model

Row = dict[str, object]


def batches_of(spool: Path, *topics: str) -> Iterator[Batch]:
    """Yield the batches of topics in a spool, by file."""
    for path in sorted([*spool.glob("*/*.seg"), *spool.glob("*/*.taken")]):
        for frame in scan(path.read_bytes()[len(SEGMENT_MAGIC) :], True):
            if getattr(frame, "kind", None) == DATA and frame.topic in topics:
                yield decode(model(frame.topic), frame.body)


def rows_of(spool: Path, topic: str) -> list[Row]:
    """Return the rows of a topic in a spool, with texts for indices."""
    rows: list[Row] = []
    for batch in batches_of(spool, topic):
        if not batch.rows:
            continue
        columns = {
            c.name: batch.strings(c.name, c.dictionary).tolist() if c.dictionary else batch.columns[c.name].tolist()
            for c in model(topic).columns
        }
        rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return rows


def counts(values: Iterable[object]) -> dict[str, int]:
    """Return how often each value comes."""
    result: dict[str, int] = defaultdict(int)
    for value in values:
        result[str(value)] += 1
    return dict(result)


def attributed(requests: list[Row], iterations: list[Row]) -> Row:
    """Return the GPU time of iterations, that of requests, and the part that belongs to none."""
    timed = [row for row in iterations if int(row["gpu_ns"]) >= 0]
    gpu = sum(int(row["gpu_ns"]) for row in timed)
    shared = sum(max(int(row["gpu_ns"]), 0) for row in requests)
    return {
        "iterations": len(iterations), "iterations_with_gpu_time": len(timed), "gpu_s": gpu / 1e9,
        "gpu_s_of_requests": shared / 1e9, "unattributed_percent": round(100 * (1 - shared / gpu), 4) if gpu else None,
    }  # fmt: skip


def phases(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Return by phase: iterations, mean ms on the host and the GPU, mean idle ms of the GPU before them."""
    result: dict[str, dict[str, float]] = {}
    for phase in sorted({str(row["phase"]) for row in rows}):
        part = [row for row in rows if row["phase"] == phase]
        result[phase] = {"iterations": len(part)}
        for name in ("duration_ns", "gpu_ns", "gpu_idle_ns"):
            values = np.array([int(row[name]) for row in part])
            known = values[values >= 0]
            result[phase][name.replace("_ns", "_ms")] = round(float(known.mean()) / 1e6, 4) if known.size else -1
    return result
