"""The sequence numbers of applied batches, to drop a batch that a restarted producer publishes at another offset."""

from __future__ import annotations

from bisect import bisect_right

#: Runs of consecutive numbers kept. Beyond it the oldest gap counts as filled: a batch that still comes for it is taken
#: for a duplicate.
MAX_RUNS = 64


class Sequences:
    """Holds a set of sequence numbers as runs [first, last].

    `runs` is the stored form, sorted.
    """

    def __init__(self, runs: list[list[int]] | None = None) -> None:
        self.runs = [list(run) for run in runs or []]

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self.runs, [number, 1 << 63]) - 1
        return i >= 0 and self.runs[i][0] <= number <= self.runs[i][1]

    def add(self, number: int) -> bool:
        """Add a number and return whether it is new."""
        if number in self:
            return False
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
        return True
