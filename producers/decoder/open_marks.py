"""Keep what the marks of a process tell beyond their windows: its step, and marks that are still open."""

from __future__ import annotations

import re
from typing import NamedTuple

#: Marks that are open between deep windows and are kept, at most: the newest.
MOST_OPEN = 64
#: Name of a mark that begins a step: of the API, or of the hook on optimizers.
_STEP = re.compile(r"(optimizer )?step ([0-9]{1,18})")


class Mark(NamedTuple):
    """Holds a mark of the collector: `flags` as in ipc/events.py, `number` of the range that it begins or ends."""

    flags: int
    number: int
    time_ns: int
    name: str


class StepNumber:
    """Follows the number of the step that the process is in; -1 = none yet."""

    def __init__(self) -> None:
        self.number, self._from_api = -1, False

    def begin(self, name: str) -> bool:
        """Take the name of a mark that begins; return whether it begins a step.

        Where the job numbers its steps itself, those of optimizers do not count.
        """
        if not (match := _STEP.fullmatch(name)):
            return False
        self._from_api = self._from_api or not match[1]
        if not match[1] or not self._from_api:
            self.number = int(match[2])
        return True


class OpenMarks:
    """Keeps the newest marks that have begun and not ended."""

    def __init__(self) -> None:
        self._marks: dict[int, Mark] = {}

    def __len__(self) -> int:
        """Return the number of marks."""
        return len(self._marks)

    def add(self, mark: Mark) -> None:
        """Keep a mark that begins; the oldest goes where there are too many."""
        self._marks[mark.number] = mark
        if len(self._marks) > MOST_OPEN:
            del self._marks[next(iter(self._marks))]

    def end(self, number: int) -> bool:
        """Forget the mark of a number; return whether it was kept."""
        return self._marks.pop(number, None) is not None

    def take(self) -> list[Mark]:
        """Return all marks, oldest first, and forget them."""
        marks = list(self._marks.values())
        self._marks.clear()
        return marks
