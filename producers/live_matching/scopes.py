"""Ranges that are open over time, by thread: NVTX ranges, and the steps and scopes of the API. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from drumline.producers.activity.activity import MARKER_END, MARKER_START

#: Name of no thread: of the API's marks, which hold for all threads.
ANY_THREAD = 0
#: Most characters of a path, the innermost ranges.
MOST_TEXT = 4_096


@dataclass(slots=True)
class _Thread:
    """Open ranges of one thread now, (id, name), and the path since each change."""

    open: list[tuple[int, str]] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def path_at(self, time_ns: int) -> tuple[str, int]:
        """Return the path of a time, and since when it is."""
        at = bisect_right(self.times, time_ns) - 1
        return (self.paths[at], self.times[at]) if at >= 0 else ("", -1)


class OpenScopes:
    """Keeps paths until `forget`. Marks of one thread come in order; threads in any."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._owner: dict[int, int] = {}  # id of a range -> thread that opened it

    def mark(self, thread: int, time_ns: int, flags: int, number: int, name: str) -> None:
        """Take the begin or the end of a range; another thread may end it."""
        if flags & MARKER_START:
            of = self._threads.setdefault(thread, _Thread())
            of.open.append((number, name.replace(";", ",")))
            self._owner[number] = thread
        elif flags & MARKER_END and (owner := self._owner.pop(number, None)) is not None:
            of = self._threads[owner]
            of.open = [entry for entry in of.open if entry[0] != number]
        else:
            return
        of.times.append(time_ns)
        of.paths.append(";".join(name for _, name in of.open))

    def marks(self, rows: Iterable[tuple[int, int, int, int, str]]) -> None:
        """Take rows of (thread, time, flags, id, name), in any order."""
        for thread, time_ns, flags, number, name in sorted(rows, key=lambda row: row[1]):
            self.mark(thread, time_ns, flags, number, name)

    def path(self, thread: int, time_ns: int) -> str:
        """Return what is open for a launch, outermost first: the API's marks, then ranges of its thread.

        A thread without ranges of its own (autograd's) is in those of the thread that opened one last.
        """
        outer, _ = self._threads[ANY_THREAD].path_at(time_ns) if ANY_THREAD in self._threads else ("", -1)
        inner, _ = self._threads[thread].path_at(time_ns) if thread in self._threads else ("", -1)
        if not inner:
            candidates = [of.path_at(time_ns) for name, of in self._threads.items() if name not in (ANY_THREAD, thread)]
            inner = max(candidates, key=lambda candidate: (bool(candidate[0]), candidate[1]), default=("", -1))[0]
        text = ";".join(part for part in (outer, inner) if part)
        return text if len(text) <= MOST_TEXT else text[-MOST_TEXT:].split(";", 1)[-1]

    def forget(self, before_ns: int) -> None:
        """Drop paths that were over before a time, and threads that have none left."""
        for name, of in list(self._threads.items()):
            first = max(bisect_left(of.times, before_ns) - 1, 0)
            del of.times[:first], of.paths[:first]
            if not of.open and of.times and of.times[-1] < before_ns:
                del self._threads[name]
