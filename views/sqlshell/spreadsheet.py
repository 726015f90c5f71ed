"""CSV that a spreadsheet shows as text: names of jobs and kernels come from users, and may be written as formulas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# ClickHouse quotes text and doubles each quote in it, so that a quote between these bytes always begins a cell.
_FORMULA = re.compile(rb'(?<=[,\n]")(?=[=+@\t-]|\r(?!\n))')
#: Bytes before and after a place that decide whether a formula begins there.
_SEEN = 2


def without_formulas(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield ClickHouse's CSV with an apostrophe before each text that begins with = + - @, a tab or carriage return.

    Numbers are not quoted and stay as they are. `parts` may end anywhere.
    """
    before, left = b"\n", b""  # the first cell begins a line too
    for part in parts:
        text = before + left + part
        end = max(len(before), len(text) - _SEEN)
        yield _escaped(text, len(before), end)
        before, left = text[max(0, end - _SEEN) : end], text[end:]
    yield _escaped(before + left, len(before), len(before + left))


def _escaped(text: bytes, begin: int, end: int) -> bytes:
    places = [match.start() for match in _FORMULA.finditer(text) if begin <= match.start() < end]
    return b"'".join(text[first:last] for first, last in zip([begin, *places], [*places, end], strict=True))
