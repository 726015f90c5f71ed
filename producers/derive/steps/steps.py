"""Training steps of one rank in host time.

Sources by precedence: the API, NVTX ranges that match a pattern, the time between two calls of the optimizer (a hook
marks them), and steps inferred from the collectives (`inference`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.schemas.columns import Array

STEP_PATTERN = r"^step (\d+)$"
#: NVTX domain of the API's steps and scopes, and the steps that the hook on PyTorch's optimizers marks in it.
API_DOMAIN = "drumline"
OPTIMIZER_PATTERN = r"^optimizer step (\d+)$"
#: Sources of steps, as in gpu.step.v1.
API, MARKER, OPTIMIZER, INFERRED = "api", "marker", "optimizer", "inferred"


@dataclass(frozen=True)
class Steps:
    """Host view of the steps, by start: number, start and end in ns, all int64."""

    number: Array
    start_ns: Array
    end_ns: Array

    def index_at(self, times: Array) -> Array:
        """Return the index of the step in which each host time lies; -1 = none."""
        if len(self.number) == 0:
            return np.full(len(times), -1, np.int64)
        at = np.searchsorted(self.start_ns, times, side="right") - 1
        inside = (at >= 0) & (times < self.end_ns[np.maximum(at, 0)])
        return np.where(inside, at, -1)

    def number_at(self, times: Array) -> Array:
        """Return the number of the step in which each host time lies; -1 = none."""
        at = self.index_at(times)
        return np.where(at >= 0, self.number[at], -1) if len(self.number) else at


def marked_steps(ranges: Table, pattern: str = STEP_PATTERN, since_ns: int = 0) -> tuple[Steps, str]:
    """Return the marked steps and their source (API, MARKER, OPTIMIZER; "" = none marked); arguments as in
    host_steps().
    """
    api_domains = np.array([name == API_DOMAIN for name in ranges.dictionaries["domains"]], dtype=bool)
    of_api = api_domains[ranges["domain"]] if ranges.rows else np.zeros(0, bool)
    for source, where, names in (
        (API, of_api, pattern),
        (MARKER, ~of_api, pattern),
        (OPTIMIZER, of_api, OPTIMIZER_PATTERN),
    ):
        steps = host_steps(ranges.take(where), names, since_ns)
        if len(steps.number):
            return steps, source
    return steps, ""


def is_step(rows: Table, pattern: str, source: str) -> Array:
    """Return which of these markers or ranges are steps of `source` (see marked_steps): bool."""
    if rows.rows == 0:
        return np.zeros(0, bool)
    api_domains = np.array([name == API_DOMAIN for name in rows.dictionaries["domains"]], dtype=bool)
    compiled = re.compile(OPTIMIZER_PATTERN if source == OPTIMIZER else pattern)
    named = np.array([compiled.search(name) is not None for name in rows.dictionaries["names"]], dtype=bool)
    kind: Array = named[rows["name"]] & (api_domains[rows["domain"]] == (source != MARKER))
    return kind


def host_steps(ranges: Table, pattern: str = STEP_PATTERN, since_ns: int = 0) -> Steps:
    """Return the steps that ranges outside NCCL's domain mark; the pattern's first group is the number.

    Numbers must rise. Where they start again, the rest is counted on (epochs that number their steps alike), but a
    numbering that ended before `since_ns` was a warm-up and has no steps. A step inside another is no step.
    """
    start, end, number = _numbered(ranges, pattern)
    if len(number) == 0:
        return Steps(number, start, end)
    numbering = _numbering(number)
    finished = end[np.searchsorted(numbering, numbering, side="right") - 1]
    start, end, number = (values[finished > since_ns] for values in (start, end, number))
    rise = np.diff(number, prepend=number[:1] - 1)
    return Steps(number + np.cumsum(np.where(rise <= 0, 1 - rise, 0)), start, end)


def numbering_ends(ranges: Table, pattern: str = STEP_PATTERN) -> Array:
    """Return when each numbering of steps ended, in ns of the process's own clock, in order."""
    _, end, number = _numbered(ranges, pattern)
    ended: Array = end[np.flatnonzero(np.diff(_numbering(number), append=np.iinfo(np.int64).max))]
    return ended


def _numbered(ranges: Table, pattern: str) -> tuple[Array, Array, Array]:
    """Return (start, end, number in the name) of the outermost step ranges, by start."""
    if ranges.rows == 0:
        none = np.empty(0, np.int64)
        return none, none, none
    compiled = re.compile(pattern)
    matches = [compiled.search(name) for name in ranges.dictionaries["names"]]
    numbers = np.array([_step_number(m.group(1)) if m else -1 for m in matches], dtype=np.int64)
    outside_nccl = np.array([name != nccl.DOMAIN for name in ranges.dictionaries["domains"]], dtype=bool)
    rows = ranges.take((numbers[ranges["name"]] >= 0) & outside_nccl[ranges["domain"]])
    start, end, number = rows["start_ns"], end_ns(rows), numbers[rows["name"]]
    outer = start >= np.maximum.accumulate(np.concatenate([[0], end]))[:-1]
    return start[outer], end[outer], number[outer]


def _step_number(digits: str) -> int:
    """Return the number that digits stand for; -1 where int64 does not hold it."""
    return int(digits) if len(digits) < 19 else -1


def _numbering(number: Array) -> Array:
    """Return 0, 1, ... for each run of rising step numbers."""
    return np.concatenate([[0], np.cumsum(np.diff(number) <= 0)])[: len(number)]
