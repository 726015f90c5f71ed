"""The communicators of one run in one partition, and which of them have completed steps that are not emitted yet."""

from __future__ import annotations

from drumline.streams.core.frontier import Frontier
from drumline.streams.lateness.state import CommunicatorState

Key = tuple[str, str]


class OpenRun:
    """Tracks the communicators of a run.

    Attributes:
        ready: communicators with steps to emit, in the order in which they completed them.
    """

    __slots__ = ("_frontier", "_goes_on", "_states", "_through", "ready")

    def __init__(self) -> None:
        self.ready: dict[Key, None] = {}
        self._states: dict[Key, CommunicatorState] = {}
        self._frontier = Frontier(self._states.values())
        self._through = -1
        self._goes_on = False

    def add(self, unit: Key, state: CommunicatorState) -> None:
        """Add a communicator."""
        self._states[unit] = state  # silent until it is updated

    def remove(self, unit: Key) -> bool:
        """Remove a communicator, and return whether others are left."""
        self._states.pop(unit, None)
        self.ready.pop(unit, None)
        self._frontier.invalidate()
        return bool(self._states)

    def update(self, state: CommunicatorState, complete: int, silent: bool) -> None:
        """Set how far a communicator is, and whether it counts."""
        if silent != state.silent or complete < state.complete:
            if state.silent and not silent:
                self._frontier.add(complete)
            else:
                self._frontier.invalidate()
            self._through = -1
        else:
            self._frontier.advance(state.complete, complete)
        state.complete, state.silent = complete, silent

    def advances(self) -> bool:
        """Return whether the last communicator has completed a step since the last call, or another one counts, or not
        all that were ready then are taken.
        """
        lowest = self._frontier.lowest()
        before, self._through = self._through, -1 if lowest is None else lowest
        return lowest is None or lowest > before or self._goes_on

    def take_ready(self, most: int) -> tuple[list[Key], int]:
        """Return communicators with steps to emit, which are then not ready any more, and the sum of their ranks.

        It ends with the one that brings the sum to `most`: the others follow at the next call.
        """
        taken: list[Key] = []
        ranks = 0
        while self.ready and ranks < most:
            unit = next(iter(self.ready))
            del self.ready[unit]
            taken.append(unit)
            ranks += len(self._states[unit].members)
        self._goes_on = bool(self.ready)
        return taken, ranks
