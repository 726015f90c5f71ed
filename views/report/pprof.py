"""GPU time by Python stack as a profile for pprof (github.com/google/pprof, proto/profile.proto). Pure.

Written by hand: a message is fields of a number and a value, and the profile needs seven of them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drumline.views.report.flame_graph import frame_parts

#: Numbers of the fields of Profile, as profile.proto has them.
_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRING = 1, 2, 4, 5, 6


def pprof(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the profile, in gzip. `rows`: of the question hot-lines by stack: place, gpu_s.

    Values are GPU time in ns. The leaf of a stack is its first location, as pprof wants it.
    """
    texts: dict[str, int] = {"": 0}
    functions: dict[tuple[str, str], int] = {}
    locations: dict[tuple[str, str, int], int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts))

    fields = [_message(_SAMPLE_TYPE, _number(1, text("gpu")) + _number(2, text("nanoseconds")))]
    for row in rows:
        frames = [frame_parts(part) for part in row["place"].split(";")]
        for function, file, _ in frames:
            functions.setdefault((function, file), len(functions) + 1)
        ids = [locations.setdefault(frame, len(locations) + 1) for frame in reversed(frames)]
        fields.append(_message(_SAMPLE, _numbers(1, ids) + _numbers(2, [round(float(row["gpu_s"]) * 1e9)])))
    for (function, file, line), number in locations.items():
        place = _message(4, _number(1, functions[function, file]) + _number(2, line))
        fields.append(_message(_LOCATION, _number(1, number) + place))
    for (function, file), number in functions.items():
        name = text(function)
        named = _number(1, number) + _number(2, name) + _number(3, name) + _number(4, text(file))
        fields.append(_message(_FUNCTION, named))
    fields += [_message(_STRING, value.encode("utf-8", "replace")) for value in texts]
    return gzip.compress(b"".join(fields), mtime=0)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _numbers(field: int, values: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, values)))
