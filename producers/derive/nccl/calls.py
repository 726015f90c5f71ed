"""NCCL calls as the host made them: NVTX ranges with their payloads, grouped where NCCL launches them as one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import names as nccl
from drumline.schemas.columns import Array


@dataclass(frozen=True)
class Calls:
    """Launches that the host asked for, in order: one per NCCL range, or one per group of them. `known` is False where
    the communicator cannot be told (no payload, or a group over several communicators or kinds of operation). `end_ns`:
    by then its kernel was launched."""

    start_ns: Array
    operation: Array
    communicator: Array
    bytes: Array
    known: Array
    end_ns: Array

    def take(self, index: Array) -> Calls:
        """The calls at these positions."""
        return Calls(*(getattr(self, f.name)[index] for f in fields(self)))


def joined(parts: list[Calls], gone: Array) -> tuple[Calls, Array]:
    """(all calls of the parts by start, where each one stood), without those of the first part that are `gone`."""
    every = Calls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Calls)))
    kept = np.flatnonzero(~np.concatenate([gone, np.zeros(len(every.start_ns) - len(gone), bool)]))
    order = kept[np.argsort(every.start_ns[kept], kind="stable")]
    return every.take(order), order


def calls(ranges: Table, payloads: Table) -> Calls:
    """The NCCL calls among a process's ranges, by start; `payloads` as in Activity. If none of them has a payload (NCCL
    before 2.25), communicators are guessed by operation."""
    operations = nccl.range_operations(ranges.dictionaries["names"])
    domain = np.array([name == nccl.DOMAIN for name in ranges.dictionaries["domains"]], dtype=bool)
    rows = ranges.take((operations[ranges["name"]] > 0) & domain[ranges["domain"]])
    order = np.argsort(payloads["id"], kind="stable")
    known, at = np.zeros(rows.rows, bool), np.zeros(rows.rows, np.int64)
    if payloads.rows:
        at = np.minimum(np.searchsorted(payloads["id"], rows["id"], sorter=order), payloads.rows - 1)
        at = order[at]
        known = payloads["id"][at] == rows["id"]
    if not known.any():
        return guessed(rows["start_ns"], operations[rows["name"]], end_ns(rows))
    pick = np.flatnonzero(known)
    communicator, size = np.zeros(rows.rows, np.uint64), np.zeros(rows.rows, np.uint64)
    communicator[pick] = payloads["communicator"][at[pick]]
    size[pick] = payloads["bytes"][at[pick]]
    return Calls(rows["start_ns"], operations[rows["name"]], communicator, size, known, end_ns(rows))


def guessed(start_ns: Array, operations: Array, end_ns: Array) -> Calls:
    """Calls of which nothing is known but the operation."""
    none = np.zeros(len(start_ns), np.uint64)
    return Calls(start_ns, operations, nccl.guess(0, operations), none, np.ones(len(start_ns), bool), end_ns)


def groups(ranges: Table, at: Array, cuts: Array) -> Array:
    """The ncclGroupStart..ncclGroupEnd section that each time lies in: 1, 2, ...; 0 = none. Nested ones count once.

    `cuts`: times, rising, at which no section is open (steps begin): what a lost record opens or closes ends there."""
    words = list(ranges.dictionaries["names"])
    code = np.array([(name == nccl.GROUP_START) - (name == nccl.GROUP_END) for name in words], dtype=np.int64)
    rows = ranges.take(code[ranges["name"]] != 0) if words else ranges
    if rows.rows == 0:
        return np.zeros(len(at), np.int64)
    turn = code[rows["name"]]
    far = (2 * rows.rows + 1) * np.searchsorted(cuts, rows["start_ns"], side="right")  # keeps parts apart
    depth = np.cumsum(turn)
    new = np.concatenate([[True], far[1:] != far[:-1]])
    depth -= (depth - turn)[np.flatnonzero(new)[np.cumsum(new) - 1]]
    depth -= (
        np.minimum.accumulate(np.minimum(depth, 0) - far) + far
    )  # an end whose start was not recorded opens nothing
    depth -= np.minimum.accumulate((depth + far)[::-1])[::-1] - far  # nor does a start whose end was not
    outermost = (depth == 1) & (turn > 0)
    last = np.searchsorted(rows["start_ns"], at, side="right") - 1
    inside = (last >= 0) & (depth[np.maximum(last, 0)] > 0)
    return np.where(inside, np.cumsum(outermost)[np.maximum(last, 0)], 0)


def until_launched(each: Calls, group: Array, ranges: Table) -> Calls:
    """Calls of a group are launched at its end."""
    if not group.any():
        return each
    last = ranges.take(
        np.array([name == nccl.GROUP_END for name in ranges.dictionaries["names"]], dtype=bool)[ranges["name"]]
    )
    at = np.searchsorted(last["start_ns"], each.start_ns)
    until = np.append(end_ns(last), 0)[at]
    return replace(each, end_ns=np.where(group > 0, np.maximum(until, each.end_ns), each.end_ns))


def grouped(each: Calls, group: Array) -> Calls:
    """One call per (group, communicator), the others as they are."""
    klass = nccl.kernel_class(each.operation)
    alone = group == 0
    section = np.where(alone, -1 - np.arange(len(group)), group)
    by_section = np.lexsort((np.arange(len(group)), section))
    first, inverse = _runs(section[by_section])
    mixed = _differs(klass[by_section], first, inverse) | ~np.logical_and.reduceat(each.known[by_section], first)
    several = _differs(each.communicator[by_section], first, inverse)
    one = by_section[first]
    same = ~_differs(each.operation[by_section], first, inverse)
    result = Calls(
        start_ns=each.start_ns[one],
        operation=np.where(same, each.operation[one], klass[one]).astype(np.uint8),
        communicator=each.communicator[one],
        bytes=np.add.reduceat(each.bytes[by_section], first),
        known=~mixed & ~several,
        end_ns=np.maximum.reduceat(each.end_ns[by_section], first),
    )
    return result.take(np.argsort(result.start_ns, kind="stable"))


def _runs(values: Array) -> tuple[Array, Array]:
    """(position of the first of each run of equal values, run number of each value)."""
    new = np.concatenate([[True], values[1:] != values[:-1]])
    return np.flatnonzero(new), np.cumsum(new) - 1


def _differs(values: Array, first: Array, run: Array) -> Array:
    """For each run: does any value differ from the run's first."""
    other: Array = np.logical_or.reduceat(values != values[first][run], first)
    return other
