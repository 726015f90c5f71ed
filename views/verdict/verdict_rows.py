"""Rows of gpu.straggler.v1, one verdict each, as Python objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from drumline.schemas.batch import Batch


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """Holds one verdict row: a rank (-1: the whole job) in one window, evaluated on its own.

    `share`: of the window's time that was lost to it; 0..1. `state`: of its alarm after the window. `lost_ns`: ns.
    `evidence`: JSON.
    """

    first_step: int
    last_step: int
    rank: int
    severity: int
    cause: str
    detail: str
    share: float
    state: str = ""
    confidence: str = ""
    lost_ns: int = 0
    gpu_seconds: float = 0.0
    evidence: str = ""


def rows_of(batch: Batch) -> Iterator[VerdictRow]:
    """Yield the rows of one batch."""
    columns = batch.columns
    causes, details = batch.strings("cause", "causes"), batch.strings("detail", "details")
    states, confidences = batch.strings("state", "states"), batch.strings("confidence", "confidences")
    evidence = batch.strings("evidence_json", "evidence")
    first, last = int(batch.envelope["first_step"]), int(batch.envelope["last_step"])
    for i in range(batch.rows):
        yield VerdictRow(
            first_step=first,
            last_step=last,
            rank=int(columns["rank"][i]),
            severity=int(columns["severity"][i]),
            cause=causes[i],
            detail=details[i],
            share=float(columns["lost_share"][i]),
            state=states[i],
            confidence=confidences[i],
            lost_ns=int(columns["lost_ns"][i]),
            gpu_seconds=float(columns["gpu_seconds_lost"][i]),
            evidence=evidence[i],
        )
