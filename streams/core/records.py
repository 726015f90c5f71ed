"""The values of the state stores: a small JSON head and a numpy record array, packed into bytes.

Layout: u1 version, i8 last source offset applied, u4 length of the head, the head as JSON, the rows in memory layout.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.record_table import RecordTable

Rows = NDArray[np.void]
_PREFIX = struct.Struct("<BqI")
#: Half as much work as json.loads, which searches for an encoding and for white space.
_read_json = json.JSONDecoder().raw_decode
#: json.dumps makes an encoder for each call.
_write_json = json.JSONEncoder(separators=(",", ":")).encode
_BEFORE_LENGTH = struct.calcsize("<Bq")
#: Raise it with every change of the packed data: fields of rows, names in heads, meaning of offsets.
#: test_state_version.py guards it.
_VERSION = 3
_OTHER_VERSION = f"state value of version {{}}, this program reads {_VERSION}"
#: Type of the rows of a value that has a head only.
NO_ROWS = np.dtype([("none", "u1")])
#: Begins an escaped character of a name in a key. No name of a person or program holds this control character.
_ESCAPE = "\x1f"


class UnreadableValue(ValueError):
    """Fatal: another version, or one with other settings, wrote a state value. It must not be dropped as poison."""


@dataclass(frozen=True, slots=True)
class StateRecord:
    """Holds an unpacked value.

    Attributes:
        offset: last source offset applied; a replay at or below it must change nothing.
        text: JSON object.
        rows: record array, a read-only view of the value.
    """

    offset: int
    text: bytes
    rows: Rows

    @property
    def head(self) -> dict[str, Any]:
        """Return the JSON object, parsed at each call: most readers need the rows alone."""
        return parse_head(self.text)


def as_json(value: Any) -> bytes:
    """Return a value as JSON without white space."""
    return _write_json(value).encode()


def parse_head(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a head."""
    head: dict[str, Any] = _read_json(text.decode())[0]
    return head


def pack_rows(offset: int, head: dict[str, Any], rows: Rows) -> bytes:
    """Return the value of a head and rows."""
    return pack_text(offset, as_json(head), rows)


def pack_text(offset: int, head: bytes, *rows: Rows) -> bytes:
    """Return the value of a head that is JSON already, and rows."""
    return b"".join((_PREFIX.pack(_VERSION, offset, len(head)), head, *(part.data for part in rows)))


def unpack_rows(data: bytes, dtype: np.dtype[Any]) -> StateRecord:
    """Return the unpacked value. Raises UnreadableValue if another version wrote it."""
    version, offset, length = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise UnreadableValue(_OTHER_VERSION.format(version))
    body = _PREFIX.size + length
    return StateRecord(offset, data[_PREFIX.size : body], np.frombuffer(data, dtype, offset=body))


def unpack_all(values: Sequence[bytes], dtype: np.dtype[Any]) -> tuple[list[bytes], list[int], Rows]:
    """Return the heads of many values as JSON, the number of rows of each, and all their rows as one array.

    Raises UnreadableValue if another version wrote one.
    """
    texts, counts, bodies = [], [], [b""]
    for data in values:
        version, _, length = _PREFIX.unpack_from(data)
        if version != _VERSION:
            raise UnreadableValue(_OTHER_VERSION.format(version))
        body = _PREFIX.size + length
        texts.append(data[_PREFIX.size : body])
        counts.append((len(data) - body) // dtype.itemsize)
        bodies.append(data[body:])
    return texts, counts, np.frombuffer(b"".join(bodies), dtype)


def rows_begin(data: bytes) -> int:
    """Return where the rows of a packed value begin; the end of one that is cut off."""
    if len(data) < _PREFIX.size:
        return len(data)
    length: int = _PREFIX.unpack_from(data)[2]
    return min(_PREFIX.size + length, len(data))


def differs(old: bytes | None, new: bytes) -> bool:
    """Return whether two packed values differ in more than their offsets."""
    return old is None or old[_BEFORE_LENGTH:] != new[_BEFORE_LENGTH:] or old[0] != new[0]


def stacked(parts: Sequence[Rows]) -> Rows:
    """Return the concatenation of at least one array of the same dtype; 10 times as fast as np.concatenate."""
    return np.frombuffer(bytearray().join(part.data for part in parts), parts[0].dtype)


def newest_steps(rows: Rows, most: int) -> Rows:
    """Return the rows of the last `most` steps of one record: work and keys of a record are bounded by steps."""
    if not len(rows):
        return rows
    last = int(rows["step"].max())
    return rows if int(rows["step"].min()) > last - most else rows[rows["step"] > last - most]


def unit_parts(name: str, begins: Mapping[str, int], count: int = 1) -> list[str] | None:
    """Return the last `count` parts of a state key, which name its unit; None for a key of the stage itself.

    `begins`: kind of a key -> number of the parts before them. The last part is a `run_key`: see `key`.
    """
    before = begins.get(name[0])
    return None if before is None else key_parts(name, before + count)[before:]


def key(*parts: object) -> str:
    """Return a state key: its parts joined by "|", which is escaped in all but the last, the `run_key`.

    Names without "|" stand as they are.
    """
    text = "|".join(map(str, parts[:-1]))
    if text.count("|") != len(parts) - 2 or _ESCAPE in text:
        text = "|".join(_escape(str(part)) for part in parts[:-1])
    return f"{text}|{parts[-1]}"


def key_parts(name: str, count: int) -> list[str]:
    """Return the parts of a state key that has `count` of them."""
    *names, last = name.split("|", count - 1)
    return [*(_unescape(part) if _ESCAPE in part else part for part in names), last]


def _escape(name: str) -> str:
    return name.replace(_ESCAPE, _ESCAPE + "0").replace("|", _ESCAPE + "1")


def _unescape(part: str) -> str:
    return part.replace(_ESCAPE + "1", "|").replace(_ESCAPE + "0", _ESCAPE)


def run_key(job: str, run: str, attempt: int = 0) -> str:
    """Return the text that names a run in state keys, or one attempt of it. Two jobs may use one run id: two runs."""
    return f"{len(job)}:{job}@{attempt}|{run}" if attempt else f"{len(job)}:{job}|{run}"


def run_keys(table: RecordTable) -> list[str]:
    """Return the `run_key` of each part of a table, or the one that all have."""
    runs = [*zip(table.text("job"), table.text("run"), strict=True)]
    return [run_key(*run) for run in (runs if len(set(runs)) > 1 else runs[:1])]


def split_run_key(text: str) -> tuple[str, str]:
    """Return (job, run). Raises UnreadableValue for another text."""
    job, _, run = _parts_of_run(text)
    return job, run


def attempt_of_key(text: str) -> int:
    """Return the attempt that a `run_key` names, 0 = none. Raises UnreadableValue as `split_run_key` does."""
    return _parts_of_run(text)[1]


def _parts_of_run(text: str) -> tuple[str, int, str]:
    length, _, rest = text.partition(":")
    if length.isdecimal() and len(length) < 10:
        job, (attempt, separator, run) = rest[: int(length)], rest[int(length) :].partition("|")
        if separator and (not attempt or (attempt[0] == "@" and attempt[1:].isdecimal())):
            return job, int(attempt[1:] or 0), run
    raise UnreadableValue(f"a state key of another version: it names the run {text[:200]!r} without its job")


def job_of_key(name: str) -> str:
    """Return the job of the `run_key` in which a state key ends; "" for a key of the stage itself."""
    rest = name
    while rest:
        rest = rest.partition("|")[2]
        with suppress(UnreadableValue):
            return split_run_key(rest)[0]
    return ""
