"""The batches of one process that were applied, to drop one that a restarted producer publishes at another offset.

Sequences are not enough: a process id is no secret, and a batch that another producer publishes under it must erase
none. So sinks store a batch with other content too (sinks/ranges/duplicates.py), and windows count it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.confluent import HEADER

#: Runs of consecutive numbers kept. Beyond it the oldest gap counts as filled: a batch that still comes for it is taken
#: for a repetition.
MAX_RUNS = 64
#: Batches whose content is kept: of some minutes of a busy process.
MAX_CONTENTS = 256
#: The low 32 bits of a sequence number, and the checksum of the record's value; 0 = it has no rows.
CONTENT = np.dtype([("sequence", "<u4"), ("content", "<u4")])
_LOW = (1 << 32) - 1


def checksum(value: bytes) -> int:
    """Return 32 bits that tell the values of records apart, never 0. Another schema id changes nothing.

    Enough here: the second of two equal ones is dropped, and whoever comes first does not know the other's bytes.
    """
    return zlib.crc32(memoryview(value)[HEADER.size :]) or 1


class Arrival(Enum):
    """Classifies a batch.

    `CONFLICT`: another batch with its sequence number is applied. `FORGOTTEN`: so is one whose content is not kept any
    more, probably the same.
    """

    NEW = auto()
    DUPLICATE = auto()
    CONFLICT = auto()
    FORGOTTEN = auto()


class AppliedBatches:
    """Holds the sequence numbers of all batches as runs [first, last], and the content of the newest.

    `runs`, `contents` (CONTENT, oldest first): the stored form; `runs` is sorted.
    """

    def __init__(self, runs: list[list[int]] | None = None, contents: NDArray[np.void] | None = None) -> None:
        self.runs = [list(run) for run in runs or []]
        self.contents = np.zeros(0, CONTENT) if contents is None else contents

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self.runs, [number, 1 << 63]) - 1
        return i >= 0 and self.runs[i][0] <= number <= self.runs[i][1]

    def add(self, number: int, content: int) -> Arrival:
        """Add a batch and return what it is; a NEW one, and one in CONFLICT, is to be applied.

        `content`: see CONTENT. A batch without rows repeats any other, as the agent publishes one in the place of a
        batch that it lost; a batch with rows that comes for such a one is new.
        """
        arrival = self._arrival(number, content)
        if arrival in (Arrival.NEW, Arrival.CONFLICT):
            entry = np.array([(number & _LOW, content)], CONTENT)
            self.contents = np.concatenate([self.contents[1 - MAX_CONTENTS :], entry])
        if number not in self:
            self._join(number)
        return arrival

    def _arrival(self, number: int, content: int) -> Arrival:
        if number not in self:
            return Arrival.NEW
        kept = self.contents["content"][self.contents["sequence"] == number & _LOW].tolist()
        if content == 0 or content in kept:
            return Arrival.DUPLICATE
        if not kept:
            return Arrival.FORGOTTEN
        return Arrival.CONFLICT if any(kept) else Arrival.NEW

    def _join(self, number: int) -> None:
        """Add a new number to the runs."""
        i = bisect_right(self.runs, [number, 1 << 63])
        after = i < len(self.runs) and self.runs[i][0] == number + 1
        if i > 0 and self.runs[i - 1][1] == number - 1:
            self.runs[i - 1][1] = self.runs.pop(i)[1] if after else number
        elif after:
            self.runs[i][0] = number
        else:
            self.runs.insert(i, [number, number])
        if len(self.runs) > MAX_RUNS:
            self.runs[0:2] = [[self.runs[0][0], self.runs[1][1]]]
