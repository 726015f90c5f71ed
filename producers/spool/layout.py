"""What lies in one spool folder: what writer and reader agree on. Pure: bytes in, bytes out.

    <root>/<process id>-<random>/lock           held (flock) as long as the writer lives
                                 identity.json  who the process is: the record of gpu.process.v1, and its schemas
                                 reserve        room for the last words, should the disk be full then
                                 000000000000.seg, ...   segments (spool_frames.py), the last one is being written

The agent renames a segment to .taken before it reads it; what is not taken is the writer's to throw away. A rename
succeeds for one of the two, so every batch is either published or counted as lost, never both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.schemas.model import model
from drumline.schemas.topics import TOPICS

FORMAT = 1
LOCK, IDENTITY, RESERVED = "lock", "identity.json", "reserve"
#: What the losses of a process with some tens of communicators take; bytes.
RESERVE_BYTES = 32_768
OPEN, TAKEN, REPLACED, SCRATCH = ".seg", ".taken", ".old", ".tmp"


class BadSpool(ValueError):
    """A folder or a segment that is not what a spool of ours would be."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """`process`: the envelope of its gpu.process.v1 record. `schemas`: topic -> fingerprint its bodies are written
    with."""

    process: Mapping[str, Any]
    schemas: Mapping[str, str]

    @property
    def process_id(self) -> str:
        return str(self.process["process_id"])


def segment_name(number: int, suffix: str = OPEN) -> str:
    return f"{number:012d}{suffix}"


def own_schemas() -> dict[str, str]:
    """Topic -> fingerprint of this version's schema."""
    return {str(spec.topic): model(spec.topic).fingerprint for spec in TOPICS if not spec.derived}


def identity_text(process: Mapping[str, Any]) -> str:
    """identity.json of a process that writes this version's schemas."""
    return json.dumps({"format": FORMAT, "process": process, "schemas": own_schemas()})


def read_identity(data: bytes, folder: str) -> ProcessIdentity:
    """Who a folder's process is. Raises BadSpool."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise BadSpool(f"{folder}: format {found['format']}, this agent knows {FORMAT}")
        identity = ProcessIdentity(dict(found["process"]), dict(found["schemas"]))
        if not identity.process_id:
            raise BadSpool(f"{folder}: {IDENTITY} names no process")
        return identity
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, BadSpool):
            raise
        raise BadSpool(f"{folder}: {IDENTITY} cannot be read ({type(error).__name__})") from None
