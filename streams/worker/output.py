"""Dead letters: the original key and bytes, with headers that say where from and why. Never the payload in a log."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.schemas.errors import BadRecord

_MESSAGE_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Origin:
    topic: str
    partition: int
    offset: int


def headers(origin: Origin, error: BaseException, app_id: str) -> list[tuple[str, bytes]]:
    """Kafka headers of a dead letter. A BadRecord's message names topic and field; of anything else only the type is
    told, since its text may hold data."""
    message = str(error) if isinstance(error, BadRecord) else "unexpected error while processing; see the worker's log"
    values = {
        "drumline.origin.topic": origin.topic,
        "drumline.origin.partition": str(origin.partition),
        "drumline.origin.offset": str(origin.offset),
        "drumline.error.code": type(error).__name__,
        "drumline.error.text": message[:_MESSAGE_LIMIT],
        "drumline.error.by": app_id,
    }
    return [(name, text.encode()) for name, text in values.items()]
