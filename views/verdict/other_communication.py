"""Communication of other libraries than NCCL in a recorded job: its share of the time of steps.

NVSHMEM, DeepEP, symmetric memory and custom all-reduces have kernels in which ranks wait for each other. Nothing tells
which calls of which ranks belong together, so that no verdict can be made of them: the share is what is not understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from drumline.infra.clickhouse.kernel_names import kernel_name
from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.intervals import union
from drumline.producers.activity.table import Table
from drumline.producers.replay.trace import Trace
from drumline.schemas.columns import Array

#: Family of such kernels (infra/clickhouse/kernel_names.py).
FAMILY = "communication"


@dataclass(frozen=True)
class OtherCommunication:
    """Holds the share of a rank's steps in which such kernels ran, 0 to 1, and their names, the longest time first."""

    share: float
    kernels: tuple[str, ...]


def other_communication(trace: Trace, steps: Mapping[int, Mapping[str, Array]]) -> dict[int, OtherCommunication]:
    """Return what each rank has of it; ranks without are left out. `steps`: columns of gpu.step.v1 by rank."""
    result = {}
    for info, activity in zip(trace.ranks, trace.activities, strict=True):
        rows, (chosen, names) = steps.get(info.rank) or {}, _kernels(activity.kernels)
        if not chosen.rows or not rows:
            continue
        start = rows["gpu_start_ns"]
        end = start + rows["gpu_duration_ns"].astype(np.int64)
        covered = union((chosen["start_ns"], end_ns(chosen))).covered(start, end)
        if (total := int((end - start).sum())) and covered.any():
            result[info.rank] = OtherCommunication(float(covered.sum()) / total, names)
    return result


def _kernels(kernels: Table) -> tuple[Table, tuple[str, ...]]:
    """Return the kernels of that family, and their short names."""
    none = kernels.take(slice(0))
    if not kernels.rows:
        return none, ()
    known = [kernel_name(name) for name in kernels.dictionaries["names"]]
    chosen = kernels.take(np.array([name.family == FAMILY for name in known], bool)[kernels["name"]])
    if not chosen.rows:
        return none, ()
    time = np.bincount(chosen["name"], chosen["duration_ns"].astype(np.float64))
    order = [at for at in np.argsort(-time).tolist() if time[at] > 0]
    return chosen, tuple(dict.fromkeys(known[at].short for at in order))
