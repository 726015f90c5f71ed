"""Reads the rows of gpu.straggler.v1 batches as scoring takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drumline.lab.evaluate.scoring import VerdictRow
from drumline.schemas.batch import Batch
from drumline.streams.offline import latest


def verdict_rows(published: Iterable[Batch]) -> Iterator[VerdictRow]:
    """Yield the rows of the last revision of each window."""
    for batch in latest(published).values():
        columns = batch.columns
        causes, details = batch.strings("cause", "causes"), batch.strings("detail", "details")
        first, last = int(batch.envelope["first_step"]), int(batch.envelope["last_step"])
        for i in range(batch.rows):
            rank, severity = int(columns["rank"][i]), int(columns["severity"][i])
            yield VerdictRow(first, last, rank, severity, causes[i], details[i], float(columns["lost_share"][i]))
