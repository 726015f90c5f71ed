"""Rebalance storms: a member of a group ends cleanly and comes back, again and again."""

from __future__ import annotations

import random
from threading import Event, Thread

from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.chaos.spans import Disturbance

#: Time between two ends of a program. Shorter than a worker takes until it has its partitions, so that most rebalances
#: begin in the middle of another; and longer than its imports take, so that it joins at all; s.
SHORTEST_S, LONGEST_S = 1.0, 6.0


def rejoining(name: str, program: ManagedProcess, seed: int) -> Disturbance:
    """Return the state in which a program gets SIGTERM again and again. Its owner starts it again, by `check`."""
    storm = _Storm(program, random.Random(seed))
    return Disturbance(f"rejoin {name}", storm.begin, storm.end)


class _Storm:
    """Ends a program from a thread of its own between `begin` and `end`."""

    def __init__(self, program: ManagedProcess, rng: random.Random) -> None:
        self._program, self._rng, self._is_over = program, rng, Event()

    def begin(self) -> None:
        Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.wait(self._rng.uniform(SHORTEST_S, LONGEST_S)):
            self._program.terminate()
