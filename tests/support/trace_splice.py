"""Other jobs out of a recorded one: its steps in another order.

All ranks leave a step together, so a job that makes recorded steps in any order, the same on all ranks, is one that
could have been recorded.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import cycle, islice

import numpy as np
import pytest
from support import recordings
from support.recordings import phases, trace

from drumline.producers.activity.table import Table, concatenate_tables
from drumline.producers.derive.rows import derive
from drumline.producers.replay import recording as recorded
from drumline.producers.replay.recording import measured_from


@cache
def derived(folder):
    """Return the derived rows of all ranks."""
    pairs = zip(trace(folder).activities, measured_from(trace(folder)), strict=True)
    return [derive(activity, since_ns=since) for activity, since in pairs]


def steps_of(folder, phase=None):
    """Return steps that can be compared: of a phase by name, or healthy ones.

    A phase's first step lies in between and is left out.
    """
    whole = set.intersection(*(set(d.steps["step"][d.steps["skipped"] == 0].tolist()) for d in derived(folder)))
    chosen = [p for p in phases(folder) if (p["phase"] == phase if phase else p["counted"] and not p["fault_ranks"])]
    return sorted(s for p in chosen for s in range(p["first_step"] + 1, p["last_step"] + 1) if s in whole)


def mixed(*patterns):
    """Yield the steps of the patterns, [(steps to choose from, times in a row)], endlessly."""
    sources = [cycle(steps) for steps, _ in patterns]
    order = [i for i, (_, times) in enumerate(patterns) for _ in range(times)]
    return (next(sources[i]) for i in cycle(order))


def spliced(folder, order):
    """Derived ranks whose steps 0, 1, ... are the recorded steps in `order`."""
    order = np.fromiter(order, np.int64)
    out = []
    for whole in derived(folder):
        at = np.searchsorted(whole.steps["step"], order)
        length = whole.steps["gpu_duration_ns"][at]
        shift = 10**18 + np.cumsum(length) - length - whole.steps["gpu_start_ns"][at]
        rows = whole.collectives.take(np.argsort(whole.collectives["step"], kind="stable"))
        none = {name: getattr(whole, name).take(slice(0, 0)) for name in ("kernels", "copies", "ranges", "samples")}
        out.append(
            replace(whole, steps=_moved(whole.steps, order, shift), collectives=_moved(rows, order, shift), **none)
        )
    return out


def _moved(table, order, shift):
    bounds = [np.searchsorted(table["step"], order, side=side) for side in ("left", "right")]
    parts = []
    for number, (low, high, by) in enumerate(zip(*bounds, shift, strict=True)):
        part = table.take(slice(int(low), int(high)))
        moved = {n: part[n] + by for n in ("start_ns", "gpu_start_ns") if n in part.columns}
        parts.append(Table({**part.columns, **moved, "step": np.full(part.rows, number)}, part.dictionaries))
    return concatenate_tables(parts)


def rows(folder, ranks):
    """Verdicts on derived ranks, as recordings.rows gives them."""
    given = iter(ranks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "read_trace", lambda *_: trace(folder))
        patch.setattr(recorded, "derive", lambda *_, **__: next(given))
        batches = recorded.RecordedJob(folder, topics=recordings.TOPICS).batches("run")
    return recordings.rows([(out.time_ns, out.batch) for out in batches])


def first(count, order):
    return list(islice(order, count))
