"""Ticks that name a job: stream workers then delete their state of it. All other ticks are empty.

They come in order with the records of their partition, so what was read before them is forgotten, and nothing else.
"""

from __future__ import annotations

#: Begins the value; a job's name follows, in UTF-8.
_MARKER = b"forget:"
#: Most bytes of a value: of a name with 1,024 characters.
MAX_BYTES = len(_MARKER) + 4_096


def forget_value(job: str) -> bytes:
    """Return the value of a tick by which a job is forgotten. Raises ValueError for no name, and for too long a one."""
    value = _MARKER + job.encode()
    if not job or len(value) > MAX_BYTES:
        raise ValueError(f"no name of a job: {job[:80]!r}")
    return value


def job_to_forget(value: bytes | None) -> str:
    """Return the job that a tick names, "" for none. Raises nothing, whatever the bytes are."""
    if not value or len(value) > MAX_BYTES or not value.startswith(_MARKER):
        return ""
    return value[len(_MARKER) :].decode(errors="replace")
