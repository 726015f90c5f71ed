"""Test of waits that ranks hide behind compute, from the collectives of a communicator alone.

Where no other kernel is recorded, a wait that overlaps compute looks like one that stops it. What follows tells them
apart. A rank that waits x longer in a collective than a step ago, and computes meanwhile, has x less to do before the
next one: the gap between them is shorter by x. A rank whose compute stops while it waits has the same gap as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.records import Rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_join import StepMatch, is_left_together

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class HiddenPart(NamedTuple):
    """Holds the sums over ranks and collectives of a step.

    Attributes:
        hidden_ns: how much of the changes the gaps took up.
        changed_ns: changes in waiting.
        spread_ns: root of the sum of squares of what they took up: where waits are exposed, gaps only vary by chance,
            and hidden_ns is as likely to be below 0 as above.
    """

    hidden_ns: int
    changed_ns: int
    spread_ns: int


def hidden_parts(
    steps: Iterable[int], matches: Mapping[int, StepMatch], config: StragglerConfig
) -> dict[int, HiddenPart]:
    """Set `hidden_wait_ns` of light steps, and return how much of their waits was hidden, compared with the steps
    before.
    """
    light = {step: of for step, of in matches.items() if of.table.shape[1] and of.table["light"].all()}
    out = {}
    for step in (step for step in steps if step in light):
        now, earlier = light[step], light.get(step - 1)
        now.rows["hidden_wait_ns"] = beyond_longest(now.table)
        if earlier is not None:
            ranks = earlier.rows["rank"], now.rows["rank"]
            out[step] = hidden_part(earlier.table, now.table, *ranks, config)
    return out


def _may_hide(table: Rows) -> NDArray[np.bool_]:
    """Return which collectives are tested: beside exchanges and all-to-alls, whose results are needed at once, the
    others; alone, they too.
    """
    left_together = is_left_together(table)
    return left_together if left_together.any() else ~left_together


def beyond_longest(table: Rows) -> Ints:
    """Return how long each rank waited in a step's collectives without the longest wait: [ranks], ns.

    Waits behind compute are seen again in each collective of the step, until the rank has caught up. `table`: the
    compared collectives, COLLECTIVE_ROW [ranks, collectives].
    """
    wait = (table["duration_ns"] - table["duration_ns"].min(0))[:, _may_hide(table)]
    return np.asarray(wait.sum(1) - wait.max(1), np.int64)


def hidden_part(before: Rows, now: Rows, ranks_before: Ints, ranks: Ints, config: StragglerConfig) -> HiddenPart:
    """Return the sums of a step against the step before. `ranks_before`, `ranks`: of the tables' rows, rising."""
    _, first, second = np.intersect1d(ranks_before, ranks, return_indices=True)
    if len(first) < 2:
        return HiddenPart(0, 0, 0)
    ordinals, wait_before, gap_before = _followed(before[first])
    ordinals_now, wait, gap = _followed(now[second])
    _, first, second = np.intersect1d(ordinals, ordinals_now, return_indices=True)
    wait_before, gap_before, wait, gap = wait_before[:, first], gap_before[:, first], wait[:, second], gap[:, second]
    most = np.maximum(np.maximum(gap, gap_before).max(0), 0)  # no gap can take up more
    change = np.minimum(wait, most) - np.minimum(wait_before, most)
    spent = np.minimum(wait, wait_before) >= most  # waits beyond any gap: a change of them shows nothing
    change[spent] = 0
    size = np.abs(change)
    taken = np.clip((gap_before - gap) * np.sign(change), -size, size)
    weight = np.broadcast_to(config.hidden_spent * most, spent.shape)
    taken = np.where(spent & (gap < config.hidden_gap * most), weight, taken)
    changed = size.sum() + weight[spent].sum()
    return HiddenPart(round(float(taken.sum())), round(float(changed)), round(float(np.linalg.norm(taken))))


def _followed(table: Rows) -> tuple[Floats, Floats, Floats]:
    """Return ordinals that are tested and followed by the next one, and of these the waits and the gaps behind:
    [ranks, n].
    """
    ordinal, start, duration = table["ordinal"][0], table["start_ns"], table["duration_ns"]
    at = np.flatnonzero((np.diff(ordinal) == 1) & _may_hide(table)[:-1])
    wait = (duration - duration.min(0))[:, at]
    gap = start[:, at + 1] - (start + duration)[:, at]
    return ordinal[at], wait.astype(np.float64), gap.astype(np.float64)
