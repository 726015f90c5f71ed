"""Choose which records of a host are joined in one, and for how long; number its parts. Their table is in merged.py."""

from __future__ import annotations

import math

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic

#: Topics whose records agents join: each rank sends a batch a step, or a second.
JOINED_BY_AGENTS = frozenset({Topic.STEP, Topic.COLLECTIVE, Topic.DEVICE, Topic.HOST, Topic.PROGRESS})
_BITS = 8
#: Parts of a record at most: their numbers, from 1, fit beside its offset. 0 = a record that is a batch itself.
MOST_PARTS = (1 << _BITS) - 1
#: Ranks of a job whose records are joined for a second. The time grows with the root of the ranks, and so do the job's
#: messages: 2 s of 4,096, 4 s of 16,384 and more. Verdicts on windows of 20 steps and more do not wait for long.
SECOND_RANKS, LONGEST_S = 1_024, 4.0
#: Longest time for which progress is joined, and that of jobs above SECOND_RANKS (there, of processes that move, it is
#: LONGEST_S: nobody waits for their records): a process counts as standing still
#: after 10 s, by its own clock, and as silent after 15 s. 10 s, a round of 1 s, this and
#: the agent's pump of 0.1 s stay within the 12 s in which a standstill is to be known.
PROGRESS_S, LARGE_PROGRESS_S = 0.2, 0.8
#: A process that was silent for less counts as moving. It is shorter than the 10 s that make a standstill; ns.
MOVING_NS = 4_000_000_000


def interval_s(world_size: int, topic: str = "", is_moving: bool = False) -> float:
    """Return for how long the records of a job are joined; s. `is_moving`: see `moves`."""
    longest = LONGEST_S
    if topic == Topic.PROGRESS and not (is_moving and world_size > SECOND_RANKS):
        longest = PROGRESS_S if world_size <= SECOND_RANKS else LARGE_PROGRESS_S
    return min(longest, math.sqrt(max(0, world_size) / SECOND_RANKS))


def moves(progress: Batch) -> bool:
    """Return whether a process surely runs and moves, by a gpu.progress.v1 batch; one without rows is a heartbeat."""
    if not progress.rows:
        return True
    states = {progress.envelope["states"][index] for index in set(progress.columns["state"].tolist())}
    return states == {"running"} and int(progress.columns["quiet_ns"].max()) < MOVING_NS


def allowance_ns(world_size: int) -> int:
    """Return by how much longer the ranks of a job may be silent, as their records are joined; ns.

    0 for jobs whose interval is within the usual times of producers.
    """
    return 0 if world_size <= SECOND_RANKS else round(interval_s(world_size) * 1e9)


def position(offset: int, part: int) -> int:
    """Return a number that rises from part to part of a partition."""
    return offset << _BITS | part


def place_of(number: int) -> tuple[int, int]:
    """Return (offset, part) of a position."""
    return number >> _BITS, number & MOST_PARTS
