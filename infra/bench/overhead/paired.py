"""drumline and CUPTI alone in turn, in blocks of steps of one process.

Processes of the same mode differ by more than the bar of a point where the host is the limit; blocks of one process
do not. "Alone" here: the decoder is stopped, the collector's thread waits, and CUPTI's buffers go back unread.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from drumline.producers.collector.attach import Attachment
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.schemas.columns import Array

#: How long a block is, and how many steps after each turn are not counted.
BLOCK_S, SETTLE = 0.5, 3
#: How often buffers are given back unread; s. The decoder looks as often.
RECYCLE_S = 0.05
#: Resamples of an interval.
DRAWS = 2000


@contextmanager
def recycled(pool: BufferPool) -> Iterator[None]:
    """Completed buffers go back unread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(RECYCLE_S):
            for number in pool.done():
                pool.give_back(number)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def alone(one: Attachment) -> Iterator[None]:
    """Nothing of drumline's is at work but CUPTI and its callbacks."""
    with one.collector._lock:
        while one.pool.done():  # the decoder reads what it was given first
            time.sleep(0.01)
        os.kill(one.decoder, signal.SIGSTOP)
        try:
            with recycled(one.pool):
                yield
        finally:
            os.kill(one.decoder, signal.SIGCONT)


def in_turn(one: Attachment, timed: Callable[[], float], seconds: float) -> dict[str, list[list[float]]]:
    """Blocks of step times, as many of each, the order changing from pair to pair. `timed` makes a step and says how
    long it took; ms."""

    def block() -> list[float]:
        for _ in range(SETTLE):
            timed()
        begin, took = time.perf_counter(), [timed()]
        while time.perf_counter() - begin < BLOCK_S:
            took.append(timed())
        return took

    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if len(ours) % 2:
            ours.append(block())
        with alone(one):
            theirs.append(block())
        if len(ours) < len(theirs):
            ours.append(block())
    return {"ours": ours, "alone": theirs}


def differences(blocks: dict[str, list[list[float]]]) -> Array:
    """Of each pair of blocks, how much larger the median of ours is: f8, a share of the median of CUPTI alone.

    A share, since where other machines use the same cores, all steps are a third slower for seconds at a time."""
    ours, other = (np.array([np.median(block) for block in blocks[name]]) for name in ("ours", "alone"))
    share: Array = (ours - other) / other
    return share


def middle(pairs: Sequence[Array]) -> float:
    """Median of the pairs of all processes: a neighbour who comes or goes between two blocks moves a mean by much."""
    return float(np.median(np.concatenate(pairs)))


def drawn(pairs: Sequence[Array], random: np.random.Generator) -> float:
    """`middle` of a resample: of processes first, then of the pairs of each."""
    return middle([random.choice(pairs[i], len(pairs[i])) for i in random.integers(0, len(pairs), len(pairs))])


def interval(draw: Callable[[np.random.Generator], float]) -> tuple[float, float]:
    """95% bootstrap interval (percentile method, Efron 1979) of what `draw` computes from a resample."""
    random = np.random.default_rng(0)
    low, high = np.percentile([draw(random) for _ in range(DRAWS)], (2.5, 97.5))
    return float(low), float(high)
