"""A stretch of a live process's activity: which kernels, markers and copies belong to it (live.py). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drumline.producers import nccl
from drumline.producers.activity import MARKER_END, MARKER_START, ends
from drumline.producers.calls import Calls, calls, grouped, groups
from drumline.producers.steps import Steps, is_step
from drumline.producers.table import Table, compacted, concatenated
from drumline.schemas.columns import Array


@dataclass(frozen=True)
class End:
    """Where a stretch ends: `host_ns`; `launches` NCCL kernels belong to it; `gpu_ns`: end of the last of them.
    `kept_ns`, `kept_launches`, `kept_gpu_ns`: the same for what the next stretch need not see again. `step`: number of
    its last step, whose calls are launches `step_low` .. `launches`; -1 = it has none."""

    host_ns: int
    launches: int
    gpu_ns: int
    kept_ns: int
    kept_launches: int
    kept_gpu_ns: int
    step: int = -1
    step_low: int = 0


class Words:
    """A dictionary that grows. `words`: in order of index."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._index: dict[str, int] = {}

    def take(self, indices: Array, words: Sequence[str]) -> Array:
        """Indices into `words` as indices into ours; u4."""
        compact, used = compacted(indices, words)
        for word in used:
            if word not in self._index:
                self._index[word] = len(self.words)
                self.words.append(word)
        return np.array([self._index[word] for word in used], np.uint32)[compact]


def one(pending: list[Table]) -> Table:
    pending[:] = [concatenated(pending)]
    return pending[0]


def some(table: Table) -> list[Table]:
    return [table] if table.rows else []


def host_launches(ranges: Table, payloads: Table, steps: Steps) -> Calls:
    """The launches that the host asked for, by start."""
    each = calls(ranges, payloads)
    group = groups(ranges, each.start_ns, steps.start_ns)
    return grouped(each, group) if group.any() else each


def communication(kernels: Table, turn: int) -> Table:
    """NCCL kernels that have a call of their own, in launch order, with their `row` in `kernels`."""
    own = np.zeros(0, np.int64)
    if kernels.rows:
        own = np.flatnonzero(nccl.is_kernel(kernels.words["names"])[kernels["name"]] & (kernels["graph"] == 0))
    own = own[np.lexsort((kernels["start_ns"][own], since(kernels["correlation"][own], turn)))]
    columns = {name: kernels[name][own] for name in ("start_ns", "duration_ns", "correlation")}
    return Table({**columns, "row": own})


def launched_at(own: Table, launched: Table) -> Table:
    """With `launched_ns`: when the host launched each kernel where that is known (`launched`, see cupti_decode), else
    when it ran."""
    order = np.argsort(launched["correlation"], kind="stable")
    at = np.searchsorted(launched["correlation"][order], own["correlation"])
    which = np.append(order, 0)[at]
    known = np.append(launched["correlation"], 0)[which] == own["correlation"]
    known &= at < launched.rows
    found = np.where(known, np.append(launched["start_ns"], 0)[which], own["start_ns"])
    return Table({**own.columns, "launched_ns": found}, own.words)


def since(correlation: Array, turn: int) -> Array:
    """Correlation ids so that the order is that of the launches, also where CUPTI's 32 bits wrap around."""
    shifted: Array = correlation.astype(np.uint32) + np.array([(1 << 31) - turn & 0xFFFF_FFFF], np.uint32)
    return shifted


def turned(kernels: Table, turn: int) -> Table:
    return Table({**kernels.columns, "correlation": since(kernels["correlation"], turn)}, kernels.words)


def certain(own: Table, settled: int) -> int:
    """How many kernels, in launch order, are certain to have none missing among them."""
    late = np.flatnonzero(ends(own) > settled)
    return int(late[0]) if len(late) else own.rows


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
    both = concatenated([inside, Table({**dangling.columns, **made}, inside.words)])
    return both, dangling["id"]
