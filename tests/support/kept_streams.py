"""The jobs whose verdicts are kept: simulated ones, and recordings."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support import recordings
from support.labs.light import light, light_batches
from support.pipeline_simulator import simulate_pipeline
from support.straggler_simulator import MS, Fault, batches, ddp, mesh, overlapped, simulate

from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.schemas.batch import Batch

Stream = list[tuple[int, Batch]]
IDLE, COPY, WORK = Fault(1, "idle", 25 * MS, first=12, last=35), Fault(2, "copy", 9 * MS, 2), Fault(3, "work", 12 * MS)


def lossy(stream: Stream, share: float = 0.04) -> Stream:
    chance = random.Random(3)
    return [item for item in stream if chance.random() >= share]


def late(stream: Stream, by_ns: int = 8_000_000_000) -> Stream:
    """Every ninth batch comes after its window was evaluated, and every seventh comes twice."""
    moved = [(time_ns + by_ns * (number % 9 == 0), batch) for number, (time_ns, batch) in enumerate(stream)]
    again = [(time_ns + by_ns, batch) for time_ns, batch in stream[::7]]
    return sorted([*moved, *again], key=lambda item: item[0])


def elastic(stream: Stream) -> Stream:
    """Rank 3 leaves after step 20 and joins again at step 40."""
    return [
        (time_ns, batch)
        for time_ns, batch in stream
        if batch.envelope["rank"] != 3 or not 20 <= int(batch.columns["step"][0]) < 40
    ]


def counted_again(stream: Stream) -> Stream:
    """A warm-up of 9 steps counts from 0 too."""
    first = [(time_ns - 10**12, batch) for time_ns, batch in stream if batch.columns["step"][-1] < 9]
    return [*first, *stream]


SIMULATED: dict[str, Callable[[], Stream]] = {
    "ddp": lambda: batches(simulate(ddp(5), 60, (IDLE, COPY))),
    "mesh": lambda: batches(simulate(mesh(2, 2, 2), 60, (IDLE, WORK))),
    "without world": lambda: batches(simulate(mesh(4, 2, world=False), 48, (WORK,), slow_link=(24, 2.0, ""))),
    "slow link": lambda: batches(simulate(ddp(4), 96, slow_link=(60, 3.0, ""))),
    "pipeline": lambda: batches(simulate_pipeline((1.0, 0.8, 1.1), 2, 72, (Fault(3, "compute", 20 * MS, first=48),))),
    "one replica": lambda: batches(simulate_pipeline((1.0, 0.9, 1.0), 1, 96, (Fault(1, "idle", 30 * MS, first=60),))),
    "one communicator": lambda: batches(simulate_pipeline((1.0, 0.9), 2, 48, (WORK,), one_communicator=True)),
    "overlapped": lambda: batches(overlapped(ddp(4), 60, (Fault(1, "idle", 25 * MS, first=36),), seed=1)),
    "light": lambda: light_batches(light(overlapped(ddp(4), 48, (Fault(1, "idle", 25 * MS, 2, last=35),), seed=1))),
    "lossy": lambda: lossy(batches(simulate(mesh(2, 2, 2), 60, (IDLE,)))),
    "late rows": lambda: late(batches(simulate(mesh(2, 2), 60, (IDLE, COPY)))),
    "elastic": lambda: elastic(batches(simulate(ddp(5), 60, (IDLE,)))),
    "counted again": lambda: counted_again(batches(simulate(mesh(2, 2), 48, (IDLE,)))),
}
RECORDED = [pytest.param(DEMO_RECORDING.name, id=DEMO_RECORDING.name)]
RECORDED += [
    pytest.param(path.name, id=path.name, marks=[pytest.mark.traces, pytest.mark.long])
    for path in recordings.other_recordings()
]
