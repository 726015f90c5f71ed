"""The CloudEvent of a notice (cloudevents.io, version 1.0), in structured mode: the notice is its data. No I/O."""

from __future__ import annotations

import json

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"
SOURCE, TYPE_PREFIX = "/drumline/notify", "drumline."


def cloud_event(number: str, body: bytes) -> bytes:
    """Return the event of a notice; of the same notice always the same bytes. `number`: its id."""
    notice = json.loads(body)
    event = {
        "specversion": "1.0",
        "id": number,
        "source": SOURCE,
        "type": TYPE_PREFIX + notice["type"],
        "subject": notice["host"],
        "time": notice["last_time"],
        "datacontenttype": "application/json",
        "data": notice,
    }
    return json.dumps(event).encode()
