"""Joining the k-th collective of a communicator in a step over its ranks: wait and lateness, without a common clock.

All ranks leave a collective together, so the one that entered last has the shortest kernel. For collective j:
floor = min over ranks of D, wait of a rank = D - floor, lateness = max over ranks of D - D (docs/design/stragglers.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.medians import peers_median
from drumline.streams.core.records import Rows, stacked
from drumline.streams.lateness.collective_rows import (
    ALL_TO_ALL,
    COLLECTIVE_ROW,
    EXCHANGE,
    KIND_ROW,
    LATENESS_ROW,
    LOCKSTEP,
    PAIR,
    PIPELINE,
    POINT_TO_POINT,
    ROOTED,
    SEND_RECV,
    SENT,
)
from drumline.streams.lateness.entries import with_ends
from drumline.streams.lateness.sends import transfer_kinds

Ints = NDArray[np.int64]


class StepMatch(NamedTuple):
    """Holds a step of a communicator, compared over its ranks.

    Attributes:
        rows: LATENESS_ROW rows of the ranks that can be compared.
        kinds: its KIND_ROW rows.
        table: what was compared, COLLECTIVE_ROW [ranks, collectives].
        pattern: use of sends and receives, see `point_to_point`.
    """

    rows: Rows
    kinds: Rows
    table: np.ndarray[Any, Any]
    pattern: str


def merge(old: Rows, new: Rows) -> Rows:
    """Return the rows of some ranks of one communicator, sorted by (rank, step, ordinal), each once; see `counting`."""
    rows = stacked([old, new])
    return rows[counting(rows, rows["step"], rows["rank"])]


def counting(rows: Rows, *groups: Ints) -> Ints:
    """Return the places of the rows that count, sorted by their group and ordinal. `groups`: the last one is the first
    to sort by; a group is one step of one rank.

    A step number that comes twice (a warm-up that counts from 0 too, a restart) is the later one: of equal
    (step, ordinal) the later start wins, and what started before the step's first collective belongs to the earlier.
    The result depends on the set of rows only, not on their order.
    """
    places = np.lexsort((rows["start_ns"], rows["ordinal"], *groups))
    if len(places) < 2:
        return places
    ordinal = rows["ordinal"][places]
    begins = np.zeros(len(places), bool)
    begins[0] = True
    for group in groups:
        begins[1:] |= group[places[1:]] != group[places[:-1]]
    newest = np.ones(len(places), bool)
    newest[:-1] = begins[1:] | (ordinal[1:] != ordinal[:-1])
    group_number = np.cumsum(begins)[newest]  # a group's last row stays, so each has a first one
    places = places[newest]
    start = rows["start_ns"][places]
    first = np.searchsorted(group_number, group_number)
    return places[start >= start[first]]


def is_in_order(rows: Rows) -> NDArray[np.bool_]:
    """Return of each row but the first whether it follows the one before in a step: with a later ordinal, and start.

    Rows of a step of a rank that all follow each other all count.
    """
    ordinal, start = rows["ordinal"], rows["start_ns"]
    follows: NDArray[np.bool_] = (ordinal[1:] > ordinal[:-1]) & (start[1:] >= start[:-1])
    return follows


def match_step(step: int, rows_of: Mapping[int, Rows], ranks: int, quorum: float, whole_share: float) -> StepMatch:
    """Return the comparison of a step.

    `rows_of`: rank -> its collectives of this step, sorted by ordinal. `ranks`: ranks seen in the communicator.
    Ranks that disagree with most on the count (last ordinal + 1) are left out; if fewer than `quorum` of all ranks
    remain, the step is skipped: every rank gets a row with collectives = 0. A hole in the ordinals is a row that was
    lost: that collective is not compared; if fewer than `whole_share` of them are left, the step is skipped.
    """
    pattern, is_pair = point_to_point(rows_of), max(len(rows_of), ranks) == PAIR
    rows_of = _with_exchanges(rows_of) if pattern == EXCHANGE and is_pair else rows_of
    sent = _transfers(step, rows_of) if pattern == PIPELINE and is_pair else np.zeros(0, KIND_ROW)
    whole = {rank: _without_point_to_point(rows) for rank, rows in rows_of.items()}
    count_of = {rank: int(rows["ordinal"][-1]) + 1 for rank, rows in whole.items() if len(rows)}
    counts = Counter(count_of.values())
    agreed = max(counts, key=lambda n: (counts[n], n), default=0)
    chosen = sorted(rank for rank, count in count_of.items() if count == agreed)
    # Ordinals come from records: one that too few rows lie below must not size an array.
    possible = min((len(whole[rank]) for rank in chosen), default=0) >= whole_share * agreed
    held = np.zeros(agreed if possible else 0, np.int64)
    for rank in chosen if possible else ():
        held[whole[rank]["ordinal"]] += 1
    common = held == len(chosen)
    if len(chosen) < max(2.0, quorum * ranks) or not possible or common.sum() < whole_share * agreed:
        skipped = np.zeros(len(rows_of), LATENESS_ROW)
        skipped["step"], skipped["rank"] = step, sorted(rows_of)
        return StepMatch(skipped, sent, np.zeros((len(skipped), 0), COLLECTIVE_ROW), pattern)
    table = np.stack([whole[rank][common[whole[rank]["ordinal"]]] for rank in chosen])
    kind = table["lockstep"][0]
    table = table[:, (table["operation"] == table["operation"][0]).all(0) & ((kind == LOCKSTEP) | (kind == ROOTED))]
    is_whole = with_ends(table, is_sent(table), is_left_together(table))
    table = table[:, is_whole & ~is_of_two_tiers(table)]
    out = np.zeros(len(chosen), LATENESS_ROW)
    out["step"], out["rank"], out["collectives"] = step, chosen, (table["lockstep"][:1] == LOCKSTEP).sum()
    if not out["collectives"].any():
        return StepMatch(out, sent, table, pattern)
    _compare(table, out)
    has_floor = (table["lockstep"][0] == LOCKSTEP) & are_alike(
        table["operation"].ravel(), table["bytes"].ravel(), np.arange(table.size).reshape(table.shape)
    )
    return StepMatch(out, stacked([_kinds(step, table[:, has_floor]), sent]), table, pattern)


def is_sent(rows: Rows) -> NDArray[np.bool_]:
    """Return of each collective, or row, whether its end is that of sending only: of what NCCL measured, `SENT`."""
    is_one = np.isin(rows["operation"], SENT) & (rows["light"] > 0)
    return np.asarray(is_one if rows.ndim == 1 else is_one.any(0), bool)


def is_of_two_tiers(table: Rows) -> NDArray[np.bool_]:
    """Return of each collective of a table whether its end is that of sending on some ranks only."""
    is_light = table["light"] > 0
    return is_sent(table) & ~is_light.all(0)


def is_left_together(table: Rows) -> NDArray[np.bool_]:
    """Return of each collective of a table whether all ranks leave it at once, and when they did is known."""
    result: NDArray[np.bool_] = (table["lockstep"][0] == LOCKSTEP) & ~np.isin(table["operation"][0], SENT)
    return result


def are_alike(operation: Ints, size: Ints, at: Ints) -> NDArray[np.bool_]:
    """Return which collectives are as large on all ranks: the floor of those can be compared with another step's.

    All are but an all-to-all of uneven parts, which may have other sizes in each step. `at`: places of the collectives
    in `operation` and `size`, [..., ranks, collectives].
    """
    is_even = np.ones(at.shape[:-2] + at.shape[-1:], bool)
    uneven = operation[at[..., 0, :]] == ALL_TO_ALL
    if uneven.any():
        is_even[uneven] = (size[at] == size[at[..., :1, :]]).all(-2)[uneven]
    return is_even


def point_to_point(rows_of: Mapping[int, Rows]) -> str:
    """Return how the ranks of one communicator use sends and receives in one step.

    EXCHANGE if their k-th operations are the same, PIPELINE if one sends what another receives, "" if it is unknown.
    Lost rows leave holes and decide nothing.
    """
    senders = [rows for rows in rows_of.values() if (rows["lockstep"] == POINT_TO_POINT).any()]
    if len(senders) < 2:
        return ""
    first = senders[0]
    for rows in senders[1:]:
        _, at, at_first = np.intersect1d(rows["ordinal"], first["ordinal"], return_indices=True)
        if (rows["operation"][at] != first["operation"][at_first]).any():
            return PIPELINE
    return EXCHANGE


def _with_exchanges(rows_of: Mapping[int, Rows]) -> Mapping[int, Rows]:
    """Return the rows of two ranks whose exchanges are in lockstep: neither leaves one before the other has entered."""
    changed = {}
    for rank, rows in rows_of.items():
        changed[rank] = rows.copy()
        changed[rank]["lockstep"][rows["operation"] == SEND_RECV] = LOCKSTEP
    return changed


def _transfers(step: int, rows_of: Mapping[int, Rows]) -> Rows:
    """Return the KIND_ROW rows of what two ranks send each other; none with a hole in their ordinals."""
    parts = [rows for _, rows in sorted(rows_of.items())]
    if any(not len(rows) or len(rows) != int(rows["ordinal"][-1]) + 1 for rows in parts):
        return np.zeros(0, KIND_ROW)
    _, kinds = transfer_kinds(stacked(parts), np.repeat(np.arange(len(parts)), [len(rows) for rows in parts]))
    kinds["step"] = step
    return kinds


def _without_point_to_point(rows: Rows) -> Rows:
    """Return the other operations with ordinals of their own: ranks send and receive in unequal numbers.

    With a hole in the ordinals the count is unknown, and the rank has no rows.
    """
    other = rows["lockstep"] != POINT_TO_POINT
    if other.all():
        return rows
    rest: Rows = rows[other].copy()
    rest["ordinal"] = np.arange(len(rest))
    return rest if len(rows) == int(rows["ordinal"][-1]) + 1 else rest[:0]


def _compare(table: np.ndarray[Any, Any], out: Rows) -> None:
    duration, lockstep = table["duration_ns"], table["lockstep"][0] == LOCKSTEP
    floor, longest = duration.min(0), duration.max(0)
    wait, late = duration - floor, longest - duration
    out["wait_ns"], out["lateness_ns"] = wait.sum(1), late[:, lockstep].sum(1)
    out["exposed_wait_ns"] = np.maximum(0, wait - table["covered_ns"]).sum(1)
    out["floor_ns"], out["bytes"] = floor[lockstep].sum(), table["bytes"][0][lockstep].sum()
    behind = peers_median(duration[:, lockstep].astype(np.float64)) - duration[:, lockstep]
    out["lag_ns"] = behind.max(1)
    worst = late.argmax(1)
    out["worst_ordinal"] = table["ordinal"][0][worst]
    out["worst_operation"] = table["operation"][0][worst]
    out["worst_longest_ns"], out["worst_own_ns"] = longest[worst], duration[np.arange(len(out)), worst]


def _kinds(step: int, table: np.ndarray[Any, Any]) -> Rows:
    kinds, index = np.unique(table[["operation", "bytes"]][0], return_inverse=True)
    out = np.zeros(len(kinds), KIND_ROW)
    out["step"], out["operation"], out["bytes"] = step, kinds["operation"], kinds["bytes"]
    out["collectives"] = np.bincount(index)
    np.add.at(out["floor_ns"], index, table["duration_ns"].min(0))
    return out
