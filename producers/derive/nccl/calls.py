"""NCCL calls as the host made them: NVTX ranges with their payloads, grouped where NCCL launches them as one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.exchanges import with_all_to_all
from drumline.schemas.columns import Array


@dataclass(frozen=True)
class NcclCalls:
    """Launches that the host requested, by start: one per NCCL range, or one per group of them.

    Attributes:
        start_ns: begin of the call, rising; int64.
        operation: index into nccl.names.OPERATIONS.
        communicator: hash or guess; u8.
        bytes: message size; u8.
        communicator_known: False without a payload, and for groups over several communicators or operation classes.
        end_ns: time by which its kernel was launched.
        peer: rank in the communicator that it sends to or receives from; i4, -1 = not known, or several.
    """

    start_ns: Array
    operation: Array
    communicator: Array
    bytes: Array
    communicator_known: Array
    end_ns: Array
    peer: Array

    def take(self, index: Array | slice) -> NcclCalls:
        """Return the calls at these positions."""
        return NcclCalls(*(getattr(self, f.name)[index] for f in fields(self)))


def joined(parts: list[NcclCalls], replaced: Array) -> tuple[NcclCalls, Array]:
    """Merge parts by start, without the calls of the first part that are `replaced`.

    Returns the calls and the position that each had in the concatenate_tables parts.
    """
    merged = NcclCalls(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(NcclCalls)))
    kept = np.flatnonzero(~np.concatenate([replaced, np.zeros(len(merged.start_ns) - len(replaced), bool)]))
    order = kept[np.argsort(merged.start_ns[kept], kind="stable")]
    return merged.take(order), order


def nccl_calls(ranges: Table, payloads: Table) -> NcclCalls:
    """Return the NCCL calls among a process's ranges, by start; `payloads` as in Activity.

    If none of them has a payload (NCCL before 2.25), communicators are guessed by operation.
    """
    operations = nccl.range_operations(ranges.dictionaries["names"])
    domain = np.array([name == nccl.DOMAIN for name in ranges.dictionaries["domains"]], dtype=bool)
    rows = ranges.take((operations[ranges["name"]] > 0) & domain[ranges["domain"]])
    order = np.argsort(payloads["id"], kind="stable")
    communicator_known, at = np.zeros(rows.rows, bool), np.zeros(rows.rows, np.int64)
    if payloads.rows:
        at = np.minimum(np.searchsorted(payloads["id"], rows["id"], sorter=order), payloads.rows - 1)
        at = order[at]
        communicator_known = payloads["id"][at] == rows["id"]
    if not communicator_known.any():
        return guessed(rows["start_ns"], operations[rows["name"]], end_ns(rows))
    pick = np.flatnonzero(communicator_known)
    communicator, size = np.zeros(rows.rows, np.uint64), np.zeros(rows.rows, np.uint64)
    communicator[pick] = payloads["communicator"][at[pick]]
    size[pick] = payloads["bytes"][at[pick]]
    operation, peer = operations[rows["name"]], np.full(rows.rows, -1, np.int32)
    if "peer" in payloads.columns:
        pick = pick[nccl.operation_class(operation[pick]) == nccl.SEND_RECV]
        peer[pick] = payloads["peer"][at[pick]]
    return NcclCalls(rows["start_ns"], operation, communicator, size, communicator_known, end_ns(rows), peer)


def guessed(start_ns: Array, operations: Array, end_ns: Array) -> NcclCalls:
    """Return calls of which only times and operations are known."""
    none, peer = np.zeros(len(start_ns), np.uint64), np.full(len(start_ns), -1, np.int32)
    known = np.ones(len(start_ns), bool)
    return NcclCalls(start_ns, operations, nccl.guess(0, operations), none, known, end_ns, peer)


def groups(ranges: Table, at: Array, cuts: Array) -> Array:
    """Return for each time its ncclGroupStart..ncclGroupEnd section: 1, 2, ...; 0 = none. Nested sections count once.

    `cuts`: rising times at which no section is open (steps begin); sections that a lost record leaves open end there.
    """
    names = list(ranges.dictionaries["names"])
    code = np.array([(name == nccl.GROUP_START) - (name == nccl.GROUP_END) for name in names], dtype=np.int64)
    rows = ranges.take(code[ranges["name"]] != 0) if names else ranges
    if rows.rows == 0:
        return np.zeros(len(at), np.int64)
    depth_change = code[rows["name"]]
    far = (2 * rows.rows + 1) * np.searchsorted(cuts, rows["start_ns"], side="right")  # keeps parts apart
    depth = np.cumsum(depth_change)
    new = np.concatenate([[True], far[1:] != far[:-1]])
    depth -= (depth - depth_change)[np.flatnonzero(new)[np.cumsum(new) - 1]]
    depth -= (
        np.minimum.accumulate(np.minimum(depth, 0) - far) + far
    )  # an end whose start was not recorded opens nothing
    depth -= np.minimum.accumulate((depth + far)[::-1])[::-1] - far  # nor does a start whose end was not
    outermost = (depth == 1) & (depth_change > 0)
    last = np.searchsorted(rows["start_ns"], at, side="right") - 1
    inside = (last >= 0) & (depth[np.maximum(last, 0)] > 0)
    return np.where(inside, np.cumsum(outermost)[np.maximum(last, 0)], 0)


def until_launched(calls: NcclCalls, group: Array, ranges: Table) -> NcclCalls:
    """Return the calls with the end of their group as `end_ns`: NCCL launches the kernels of a group there."""
    if not group.any():
        return calls
    last = ranges.take(
        np.array([name == nccl.GROUP_END for name in ranges.dictionaries["names"]], dtype=bool)[ranges["name"]]
    )
    at = np.searchsorted(last["start_ns"], calls.start_ns)
    until = np.append(end_ns(last), 0)[at]
    return replace(calls, end_ns=np.where(group > 0, np.maximum(until, calls.end_ns), calls.end_ns))


def grouped(calls: NcclCalls, group: Array) -> NcclCalls:
    """Merge the calls of each (group, communicator) into one; calls outside groups stay as they are."""
    operation_class = nccl.operation_class(calls.operation)
    ungrouped = group == 0
    section = np.where(ungrouped, -1 - np.arange(len(group)), group)
    by_section = np.lexsort((np.arange(len(group)), section))
    first, inverse = _runs(section[by_section])
    mixed = _differs(operation_class[by_section], first, inverse) | ~np.logical_and.reduceat(
        calls.communicator_known[by_section], first
    )
    several = _differs(calls.communicator[by_section], first, inverse)
    first_call = by_section[first]
    same = ~_differs(calls.operation[by_section], first, inverse)
    operation = np.where(same, calls.operation[first_call], operation_class[first_call]).astype(np.uint8)
    result = NcclCalls(
        start_ns=calls.start_ns[first_call],
        operation=with_all_to_all(operation, calls.operation[by_section], calls.peer[by_section], first),
        communicator=calls.communicator[first_call],
        bytes=np.add.reduceat(calls.bytes[by_section], first),
        communicator_known=~mixed & ~several,
        end_ns=np.maximum.reduceat(calls.end_ns[by_section], first),
        peer=np.where(np.diff(np.append(first, len(by_section))) == 1, calls.peer[first_call], -1).astype(np.int32),
    )
    return result.take(np.argsort(result.start_ns, kind="stable"))


def _runs(values: Array) -> tuple[Array, Array]:
    """Return the position of the first of each run of equal values, and the run number of each value."""
    new = np.concatenate([[True], values[1:] != values[:-1]])
    return np.flatnonzero(new), np.cumsum(new) - 1


def _differs(values: Array, first: Array, run: Array) -> Array:
    """Return for each run whether any value differs from the run's first."""
    other: Array = np.logical_or.reduceat(values != values[first][run], first)
    return other


def ordinals(communicator: Array, step: Array) -> Array:
    """Return 0, 1, 2, ... per (communicator, step), in the order of the calls; int32."""
    order = np.lexsort((np.arange(len(step)), step, communicator))
    ordinal = np.zeros(len(order), np.int32)
    if len(order):
        communicator, step = communicator[order], step[order]
        new = np.append(True, (step[1:] != step[:-1]) | (communicator[1:] != communicator[:-1]))
        ordinal[order] = np.arange(len(order)) - np.flatnonzero(new)[np.cumsum(new) - 1]
    return ordinal
