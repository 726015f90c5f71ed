"""Interleaves drumline and CUPTI alone, in blocks of steps of one process.

Where the host is the limit, processes of the same mode differ by more than the target of one point. Blocks of one
process do not. In a block of CUPTI alone the decoder is stopped, the collector's thread waits, and CUPTI's buffers are
returned unread.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from drumline.producers.collector.attachment import Attachment
from drumline.producers.ipc.buffer_pool import BufferPool
from drumline.schemas.columns import Array

#: Length of a block, s; steps at its start that are not counted.
BLOCK_S, SETTLE = 0.5, 3
#: Period in which buffers are returned unread; s. The decoder polls as often.
RECYCLE_S = 0.05
#: Resamples of an interval.
DRAWS = 2000


@contextmanager
def recycled(pool: BufferPool) -> Iterator[None]:
    """Return completed buffers unread, from a thread of its own, until the block ends."""
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
def cupti_only(attachment: Attachment) -> Iterator[None]:
    """Suspend all of drumline but CUPTI and its callbacks until the block ends."""
    with attachment.collector._lock:
        while attachment.pool.done():  # the decoder reads first what it was given
            time.sleep(0.01)
        os.kill(attachment.decoder, signal.SIGSTOP)
        try:
            with recycled(attachment.pool):
                yield
        finally:
            os.kill(attachment.decoder, signal.SIGCONT)


def interleaved_blocks(
    attachment: Attachment, timed: Callable[[], float], seconds: float
) -> dict[str, list[list[float]]]:
    """Return equally many blocks of step times with drumline and with CUPTI alone; their order alternates.

    `timed` runs one step and returns its time; ms.
    """

    def block() -> list[float]:
        for _ in range(SETTLE):
            timed()
        begin, took = time.perf_counter(), [timed()]
        while time.perf_counter() - begin < BLOCK_S:
            took.append(timed())
        return took

    drumline: list[list[float]] = []
    cupti: list[list[float]] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        if len(drumline) % 2:
            drumline.append(block())
        with cupti_only(attachment):
            cupti.append(block())
        if len(drumline) < len(cupti):
            drumline.append(block())
    return {"drumline": drumline, "cupti": cupti}


def differences(blocks: dict[str, list[list[float]]]) -> Array:
    """Return by how much drumline's median exceeds that of CUPTI alone, per pair of blocks: f8, a share of the latter.

    A share, because load of other machines on the same cores slows all steps by a third for seconds at a time.
    """
    drumline, cupti = (np.array([np.median(block) for block in blocks[name]]) for name in ("drumline", "cupti"))
    share: Array = (drumline - cupti) / cupti
    return share


def median_of_pairs(pairs: Sequence[Array]) -> float:
    """Return the median over the pairs of all processes. Load that changes between two blocks would distort a mean."""
    return float(np.median(np.concatenate(pairs)))


def resampled_median(pairs: Sequence[Array], random: np.random.Generator) -> float:
    """Return `median_of_pairs` of a resample: of processes first, then of the pairs of each."""
    return median_of_pairs([random.choice(pairs[i], len(pairs[i])) for i in random.integers(0, len(pairs), len(pairs))])


def interval(draw: Callable[[np.random.Generator], float]) -> tuple[float, float]:
    """Return the 95% bootstrap interval (percentile method, Efron 1979) of what `draw` computes from a resample."""
    random = np.random.default_rng(0)
    low, high = np.percentile([draw(random) for _ in range(DRAWS)], (2.5, 97.5))
    return float(low), float(high)
