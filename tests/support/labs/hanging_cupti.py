"""A rank that is recorded by a fake CUPTI alone, and hangs or not: hanging_cupti.py HOW FOLDER.

Each step is an AllReduce: its kernel ends when all ranks have called, which they show by files in FOLDER. Until then
CUPTI holds the buffer with the kernel and its call. Rank 1 sleeps (`sleep`), or none does (`healthy`).
"""

import os
import sys
import time
from pathlib import Path

from support.fakes.cupti import FakeCupti, Job

from drumline.producers.collector import attach

#: The step that rank 1 does not call; its time.
LAST, STEP_NS = 8, 100_000_000
fake, job = FakeCupti(), Job(0, STEP_NS, calls=1, behind=0)


def run(how: str, folder: Path) -> None:
    rank, ranks, step = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 0
    fake.racy = False
    assert attach.attach("always", cupti=fake.bound())
    while True:
        attach.step(step)
        if step == LAST and rank == 1 and how == "sleep":
            time.sleep(3_600)  # sleep
        job.begin_ns = time.time_ns() - step * STEP_NS
        data, places = job.records(step)
        fake.busy = True
        fake.play(data, places)
        (folder / f"{step}-{rank}").touch()
        while len(list(folder.glob(f"{step}-*"))) < ranks:
            time.sleep(0.005)
        fake.busy = how == "healthy" and step % 20 > 5  # CUPTI holds it on where the GPU has more to do
        time.sleep(STEP_NS / 1e9)
        step += 1


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
