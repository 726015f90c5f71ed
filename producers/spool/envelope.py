"""Reads the fields that every batch begins with, without its columns."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro

from drumline.schemas.envelope import ENVELOPE

_SHARED: Any = fastavro.parse_schema(
    {"type": "record", "name": "Shared", "fields": [{"name": n, "type": k} for n, k in ENVELOPE.items()]},
    named_schemas={},
)


def read_envelope(topic: str, body: bytes) -> dict[str, Any]:
    """Return the fields that every record begins with. Raises ValueError."""
    try:
        fields: Any = fastavro.schemaless_reader(BytesIO(body), _SHARED, None)
    except Exception as error:  # fastavro raises whatever the bytes lead it to
        raise ValueError(f"a batch of {topic} cannot be read ({type(error).__name__})") from None
    return dict(fields)
