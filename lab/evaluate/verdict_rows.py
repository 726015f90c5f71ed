"""Reads the rows of gpu.straggler.v1 batches as scoring takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drumline.schemas.batch import Batch
from drumline.streams.offline import latest
from drumline.views.verdict.verdict_rows import VerdictRow, rows_of


def verdict_rows(published: Iterable[Batch]) -> Iterator[VerdictRow]:
    """Yield the rows of the last revision of each window."""
    for batch in latest(published).values():
        yield from rows_of(batch)
