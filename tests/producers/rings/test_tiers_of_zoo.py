"""NCCL's operations of recorded jobs (tests/gpu/zoo.py) by the light tier against CUPTI, one by one."""

from pathlib import Path

import numpy as np
import pytest

from drumline.cli.query.evaluate import read_phases
from drumline.producers.replay.published import read_published
from drumline.schemas.topics import Topic

FOLDER = Path(__file__).parents[2] / "data" / "published"
#: Difference of starts, and of stops where a recording has no bound of its own, at 99 %; us.
MOST_US = 10
#: Share of a phase's operations that the light tier may lack.
MOST_LOST = 0.002
#: Operations whose stop by the light tier is that of a part of their kernel.
PARTIAL = ["AllToAll", "AllGather"]
#: Ranks whose clocks drift apart in the last phase.
DRIFTS = {("zoo-pipeline", 1)}
#: (step, communicator, ordinal) -> (kind, start, stop); ns.
Operations = dict[tuple[int, int, int], tuple[str, int, int]]


def operations(folder: Path, rank: int) -> Operations:
    result: Operations = {}
    communicators: dict[str, int] = {}
    for _, batch in read_published(folder):
        if batch.topic != Topic.COLLECTIVE or batch.envelope["rank"] != rank:
            continue
        communicator = communicators.setdefault(batch.envelope["communicator"], len(communicators))
        step, ordinal, start_ns, duration_ns = (
            batch.columns[name].tolist() for name in ("step", "ordinal", "start_ns", "duration_ns")
        )
        kinds = batch.strings("operation", "operations").tolist()
        if folder.parent.name == "zoo-moe":  # CUPTI's rows are older than the recognition of all-to-alls
            kinds = ["AllToAll" if kind == "SendRecv" else kind for kind in kinds]
        for at, number, kind, start, duration in zip(step, ordinal, kinds, start_ns, duration_ns, strict=True):
            result[at, communicator, number] = kind, start, start + duration
    return result


def differences(light: Operations, cupti: Operations) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return steps, kinds, and differences of starts and stops of CUPTI's operations; us, NaN where light has none."""
    none = ("", np.nan, np.nan)
    times = np.array([np.subtract(light.get(key, none)[1:], cupti[key][1:]) for key in cupti], float) / 1e3
    kinds = np.array([kind for kind, *_ in cupti.values()])
    assert all(light[key][0] == cupti[key][0] for key in light.keys() & cupti.keys())
    whole = times[~np.isin(kinds, PARTIAL)]
    return np.array([step for step, *_ in cupti]), kinds, times - np.nanmedian(whole, axis=0).mean()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "most_us"), [
    ("zoo-accumulation", MOST_US), ("zoo-moe", 40), ("zoo-pipeline", MOST_US), ("zoo-rl", MOST_US),
    ("zoo-once-accumulation", MOST_US), ("zoo-once-pipeline", MOST_US),
    ("zoo-lengths", MOST_US), ("zoo-fsdp2", MOST_US),
])  # fmt: skip
def test_operations_begin_and_end_as_by_cupti(name, most_us, rank):
    """Compare operations of healthy phases and of those with a late host, less one offset for all of a rank's times.

    Left out, as true today:
    - Stops of all_to_all and AllGather. By the light tier they end with a part of the kernel that waits for no peer:
      an all_to_all of the rank that comes first up to 15 ms early (streams/lateness/entries.py mends that), an
      AllGather of 64 bytes 0.1 ms.
    - The last phase of `zoo-pipeline` on rank 1: all its times drift away by up to 75 us in the last 100 steps.
    - Phases with another process on a GPU, where a single stop is 2 ms early.
    - `zoo-tp`: on rank 0 all times move by up to 0.1 ms, and 2 % of the operations have none.
    AllReduces of `zoo-moe` lie beside computation and end up to 40 us early.
    """
    light, cupti = (operations(FOLDER / name / tier, rank) for tier in ("light", "cupti"))
    measured = np.unique([step for step, *_ in light])
    steps, kinds, times = differences(light, cupti)
    phases = read_phases(FOLDER / name / "cupti")
    last = phases[-1]
    for phase in phases:
        if phase["phase"].startswith("gpu") or (phase is last and (name, rank) in DRIFTS):
            continue
        inside = (steps >= phase["first_step"]) & (steps <= phase["last_step"]) & np.isin(steps, measured)
        assert len(np.unique(steps[inside])) >= 40
        assert np.isnan(times[inside, 0]).mean() <= MOST_LOST
        start_us, stop_us = np.abs(times[inside]).T
        assert np.nanquantile(start_us, 0.99) <= MOST_US, phase["phase"]
        whole = ~np.isin(kinds[inside], PARTIAL)
        assert np.nanquantile(stop_us[whole], 0.99) <= most_us, phase["phase"]
