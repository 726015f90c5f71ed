"""Calculate with the offsets of one topic partition: ranges, packed offset sets, gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Names offsets first..last, both included, of one partition of one incarnation of a topic."""

    topic_id: str
    partition: int
    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"no range: {self.first}..{self.last}")

    @property
    def token(self) -> str:
        """Return the name of this range's content: a recreated topic has another id, so tokens never collide."""
        return f"{self.topic_id}:{self.partition}:{self.first}-{self.last}"

    @property
    def topic_partition(self) -> str:
        """Return the value that raw rows have in `_topic_partition`."""
        return f"{self.topic_id}:{self.partition}"


def pack(offsets: Iterable[int], base: int) -> str:
    """Return offsets >= base as runs relative to it, in any order: {base, base+3, base+4, base+5} -> "0,3-5".

    Raises:
        ValueError: an offset is below `base`.
    """
    runs: list[list[int]] = []
    for value in sorted(set(offsets)):
        if value < base:
            raise ValueError(f"offset {value} below {base}")
        if runs and runs[-1][1] == value - base - 1:
            runs[-1][1] = value - base
        else:
            runs.append([value - base, value - base])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def unpack(text: str, base: int, limit: int) -> frozenset[int]:
    """Return the offsets that `pack` wrote. Raises ValueError on other text, or on an offset beyond `limit`."""
    offsets: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if not 0 <= low <= high or base + high > limit:
            raise ValueError(f"bad run {part!r}")
        offsets.update(range(base + low, base + high + 1))
    return frozenset(offsets)


class Intervals:
    """Stores a set of integers as disjoint, sorted, closed intervals.

    Small while the integers are nearly contiguous.
    """

    __slots__ = ("_first", "_last")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._first: list[int] = []
        self._last: list[int] = []
        for value in values:
            self.add(value)

    @classmethod
    def union(cls, runs: Iterable[tuple[int, int]]) -> Intervals:
        """Return the set of all closed intervals, which may overlap."""
        result = cls()
        for first, last in sorted(runs):
            if not result._last or first > result._last[-1]:
                result.add_run(first, last)
            else:
                result._last[-1] = max(result._last[-1], last)
        return result

    def add(self, value: int) -> bool:
        """Add the value; return False if the set had it already."""
        at = bisect_right(self._first, value) - 1
        if at >= 0 and value <= self._last[at]:
            return False
        joins_left = at >= 0 and self._last[at] == value - 1
        joins_right = at + 1 < len(self._first) and self._first[at + 1] == value + 1
        if joins_left and joins_right:
            self._last[at] = self._last.pop(at + 1)
            self._first.pop(at + 1)
        elif joins_left:
            self._last[at] = value
        elif joins_right:
            self._first[at + 1] = value
        else:
            self._first.insert(at + 1, value)
            self._last.insert(at + 1, value)
        return True

    def add_run(self, first: int, last: int) -> None:
        """Add first..last, which must lie behind all values of the set. Raises ValueError if it does not."""
        if last < first or (self._last and first <= self._last[-1]):
            raise ValueError(f"{first}..{last} is not behind the rest")
        if self._last and self._last[-1] == first - 1:
            self._last[-1] = last
        else:
            self._first.append(first)
            self._last.append(last)

    def __contains__(self, value: int) -> bool:
        at = bisect_right(self._first, value) - 1
        return at >= 0 and value <= self._last[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._first, self._last, strict=True))

    def gaps(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the closed intervals of first..last that are not in the set."""
        at = first
        for low, high in self:
            if high < at:
                continue
            if low > last:
                break
            if low > at:
                yield at, low - 1
            at = high + 1
        if at <= last:
            yield at, last
