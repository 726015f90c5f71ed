"""A stretch of a live process's activity: which kernels, markers and copies belong to it (live.py). Pure."""

from __future__ import annotations

import numpy as np

from drumline.producers.activity.activity import MARKER_END, MARKER_START
from drumline.producers.activity.table import Table, concatenated
from drumline.producers.derive.nccl.calls import NcclCalls, grouped, groups, nccl_calls
from drumline.producers.derive.steps.steps import Steps, is_step
from drumline.producers.live.segment_stretch_end import End
from drumline.schemas.columns import Array


def host_launches(ranges: Table, payloads: Table, steps: Steps) -> NcclCalls:
    """The launches that the host asked for, by start."""
    each = nccl_calls(ranges, payloads)
    group = groups(ranges, each.start_ns, steps.start_ns)
    return grouped(each, group) if group.any() else each


def before_end(kernels: Table, own: Table, end: End) -> Array:
    """Which kernels belong to a stretch: bool."""
    chosen: Array = kernels["start_ns"] < end.gpu_ns  # what ran until then, apart from communication
    chosen[own["row"]] = False
    chosen[own["row"][: end.launches]] = True
    return chosen


def lag(own: Table, collectives: Table, end: End) -> int | None:
    """By how many kernels `own` is behind the calls at the end of a stretch: so many were lost. None where its last
    step was not paired as a whole."""
    starts = collectives["start_ns"][collectives["step"] == end.step]
    at = np.flatnonzero(np.isin(own["start_ns"], starts))
    whole = end.step >= 0 and len(starts) and len(at) == len(starts) == end.launches - end.step_low
    return end.step_low - int(at[0]) if whole else None


def endless(markers: Table, until_ns: int, pattern: str, source: str, before_ns: int) -> Array:
    """Ids of ranges that are open at the end of a step and will not be ended, as records were lost: steps of the same
    kind (steps do not nest), and others that began before a time. `pattern`, `source`: see steps.is_step."""
    inside = markers.take(markers["time_ns"] <= until_ns)
    start, stop = (inside["flags"] & MARKER_START) != 0, (inside["flags"] & MARKER_END) != 0
    open_ = inside.take(start & ~np.isin(inside["id"], inside["id"][stop]))
    ids: Array = open_["id"][is_step(open_, pattern, source) | (open_["time_ns"] < before_ns)]
    return ids


def closed(markers: Table, until_ns: int) -> tuple[Table, Array]:
    """(markers up to a time, ids of ranges open then). Those are ended just behind it: what lies in them must find its
    parent."""
    inside = markers.take(markers["time_ns"] <= until_ns)
    start, stop = (inside["flags"] & MARKER_START) != 0, (inside["flags"] & MARKER_END) != 0
    dangling = inside.take(start & ~np.isin(inside["id"], inside["id"][stop]))
    made = {"time_ns": np.full(dangling.rows, until_ns + 1), "flags": np.full(dangling.rows, MARKER_END, np.int32)}
    both = concatenated([inside, Table({**dangling.columns, **made}, inside.dictionaries)])
    return both, dangling["id"]
