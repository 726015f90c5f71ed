"""Files of one spool folder, as writer and reader agree on them.

    <root>/<process id>-<random>/lock           held (flock) while the writer runs
                                 identity.json  the process's gpu.process.v1 record, and its schemas
                                 reserve        space for the final losses, in case the disk is full then
                                 000000000000.seg, ...   segments (segment_format.py); the last one is being written

The agent renames a segment to .taken before it reads it; the writer may evict the others. A rename succeeds for one of
the two, so every batch is either published or counted as lost, never both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.schemas.model import model
from drumline.schemas.topics import RAW_TOPICS, WINDOW_TOPICS

FORMAT = 1
#: The agent's folder below the root; process folders never begin with a dot.
AGENT_FOLDER = ".agent"
LOCK, IDENTITY, RESERVED = "lock", "identity.json", "reserve"
#: Size of the losses of a process with some tens of communicators; bytes.
RESERVE_BYTES = 32_768
OPEN, TAKEN, REPLACED, SCRATCH = ".seg", ".taken", ".old", ".tmp"


class BadSpool(ValueError):
    """A folder or segment that no writer of drumline would leave. No retry helps."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies the process of a folder.

    `process`: envelope of its gpu.process.v1 record. `schemas`: topic -> fingerprint of the schema of its bodies.
    """

    process: Mapping[str, Any]
    schemas: Mapping[str, str]

    @property
    def process_id(self) -> str:
        """Id of the process."""
        return str(self.process["process_id"])


def segment_name(number: int, suffix: str = OPEN) -> str:
    """Return the file name of a segment."""
    return f"{number:012d}{suffix}"


def own_schemas() -> dict[str, str]:
    """Return the fingerprints of this version's schemas, by topic."""
    return {str(topic): model(topic).fingerprint for topic in (*RAW_TOPICS, *WINDOW_TOPICS)}


def identity_text(process: Mapping[str, Any]) -> str:
    """Return the content of identity.json for a process that writes this version's schemas."""
    return json.dumps({"format": FORMAT, "process": process, "schemas": own_schemas()})


def read_identity(data: bytes, folder: str) -> ProcessIdentity:
    """Parse identity.json; `folder` is for messages. Raises BadSpool."""
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise BadSpool(f"{folder}: format {content['format']}, this agent knows {FORMAT}")
        identity = ProcessIdentity(dict(content["process"]), dict(content["schemas"]))
        if not identity.process_id:
            raise BadSpool(f"{folder}: {IDENTITY} names no process")
        return identity
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, BadSpool):
            raise
        raise BadSpool(f"{folder}: {IDENTITY} cannot be read ({type(error).__name__})") from None
