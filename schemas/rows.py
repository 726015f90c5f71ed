"""A batch as rows: what a person or a script wants to see. Not for hot paths."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from drumline.schemas.batch import Batch
from drumline.schemas.model import IDENTITY, model


def to_rows(batch: Batch, identity: Sequence[str] = IDENTITY) -> list[dict[str, Any]]:
    """One dict a row: `identity` fields, the topic's own envelope fields (window, communicator, ...), then the columns
    as Python numbers, dictionary columns as their text. A topic without columns gives one row: its envelope."""
    record = model(batch.topic)
    topic_fields = [name for name in record.topic_fields if name in record.envelope and name not in record.dictionaries]
    identity_fields = [name for name in identity if name in record.envelope]
    shared = {name: batch.envelope[name] for name in (*identity_fields, *topic_fields)}
    if not record.columns:
        return [copy.deepcopy(shared)]
    names = [column.name for column in record.columns]
    values = [
        (batch.strings(c.name, c.dictionary) if c.dictionary else batch.columns[c.name]).tolist()
        for c in record.columns
    ]
    return [{**copy.deepcopy(shared), **dict(zip(names, row, strict=True))} for row in zip(*values, strict=True)]
