"""NCCL's operations of one Kineto file: what each kernel is, in which process group, and when it was launched.

Newer files state it in the kernel's arguments. In others the launch of the kernel lies in an annotation `nccl:...` of
the same thread, or in the operator record_param_comms, which states the process group.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.foreign.collective_calls import CollectiveCalls, communicator_hash
from drumline.producers.foreign.kineto.event_columns import NcclArgs
from drumline.producers.foreign.kineto.typed_events import GroupConfig
from drumline.schemas.columns import Array

#: Begin of PyTorch's name of an operation, stripped only -> operation of NCCL; the first that fits.
_OPERATIONS: Sequence[tuple[str, str]] = (
    ("alltoall", "AllToAll"),
    ("reducescatter", "ReduceScatter"),
    ("allreduce", "AllReduce"),
    ("barrier", "AllReduce"),
    ("allgather", "AllGather"),
    ("broadcast", "Broadcast"),
    ("gather", "Gather"),
    ("scatter", "Scatter"),
    ("reduce", "Reduce"),
    ("send", "Send"),
    ("recv", "Recv"),
)


def operation_code(name: str) -> int:
    """Return the operation that PyTorch's name of it stands for, an index into nccl.names.OPERATIONS; 0 = unknown."""
    stripped = re.sub(r"[^a-z]", "", name.lower())
    return next((nccl.OPERATIONS.index(known) for begin, known in _OPERATIONS if stripped.startswith(begin)), 0)


def calls_of_kernels(
    kernels: dict[str, Array],
    names: Sequence[str],
    launches: dict[str, Array],
    scopes: dict[str, Array],
    stated: Sequence[NcclArgs],
    groups: Sequence[GroupConfig],
) -> tuple[CollectiveCalls, tuple[str, ...]]:
    """Return a call for each NCCL kernel, and sentences on what was assumed.

    `kernels`: in launch order; `stated` in it and in `scopes`: index into `stated`. `launches`: runtime calls.
    `scopes`: annotations and operators that name operations. `groups`: of distributedInfo.
    """
    launch, thread = _launches(kernels["correlation"], launches)
    group_args, operation_args = _scope_args(scopes, stated, launch, thread)
    of_kernel = nccl.kernel_operations(names)[kernels["name"]] if len(kernels["name"]) else np.zeros(0, np.uint8)
    operations = np.array([operation_code(args.operation) for args in stated] + [0], np.uint8)
    in_kernel = kernels["stated"]
    operation = np.where(operations[in_kernel] > 0, operations[in_kernel], operations[operation_args])
    # Uneven gathers are broadcasts to NCCL: where the kernel states an operation of another class, it is right.
    agrees = (of_kernel == 0) | (nccl.operation_class(operation) == of_kernel)
    operation = np.where((operation > 0) & agrees, operation, of_kernel).astype(np.uint8)
    group_of = np.array([_group_hash(args, groups) for args in stated] + [0], np.uint64)
    group = np.where(group_of[in_kernel] > 0, group_of[in_kernel], group_of[group_args])
    sizes = np.array([args.bytes for args in stated] + [0], np.uint64)
    size = np.where(sizes[in_kernel] > 0, sizes[in_kernel], sizes[group_args])
    notes: tuple[str, ...] = ()
    if (unnamed := group == 0).any():
        group = np.where(unnamed, _by_stream(kernels["stream"]), group)
        notes = (
            "process groups are not named (PyTorch before 2.3); each of NCCL's streams is taken for one, in order of "
            "their first kernels",
        )
    return CollectiveCalls(launch, kernels["start_ns"], operation, group, size), notes


def _launches(correlation: Array, launches: dict[str, Array]) -> tuple[Array, Array]:
    """Return for each kernel when it was launched, and in which thread; 0 and -1 = unknown."""
    order = np.argsort(launches["correlation"], kind="stable")
    known = launches["correlation"][order]
    at = np.searchsorted(known, correlation)
    hit = (at < len(known)) & (np.append(known, -1)[at] == correlation) & (correlation > 0)
    at = np.where(hit, at, len(known))
    start = np.append(launches["start_ns"][order], 0)[at]
    return start, np.append(launches["thread"][order], -1)[at]


def _scope_args(
    scopes: dict[str, Array], stated: Sequence[NcclArgs], launch: Array, thread: Array
) -> tuple[Array, Array]:
    """Return for each kernel what states its group, and its operation: an index into `stated`, -1 = nothing does."""
    has_group = np.array([bool(args.group[0]) for args in stated] + [False])
    has_operation = np.array([operation_code(args.operation) > 0 for args in stated] + [False])
    names_group, names_operation = has_group[scopes["stated"]], has_operation[scopes["stated"]]
    return _innermost(scopes, names_group, launch, thread), _innermost(scopes, names_operation, launch, thread)


def _innermost(scopes: dict[str, Array], wanted: Array, launch: Array, thread: Array) -> Array:
    """Return the `stated` of the last wanted scope in the thread of each launch that holds the launch; -1 = none."""
    rows = np.flatnonzero(wanted)
    order = rows[np.lexsort((scopes["start_ns"][rows], scopes["thread"][rows]))]
    result = np.full(len(launch), -1, np.int64)
    for number in np.unique(thread[thread >= 0]).tolist():
        of_thread = order[scopes["thread"][order] == number]
        at_kernel = np.flatnonzero((thread == number) & (launch > 0))
        if not len(of_thread):
            continue
        start = scopes["start_ns"][of_thread]
        end = start + scopes["duration_ns"][of_thread]
        at = np.searchsorted(start, launch[at_kernel], side="right") - 1
        inside = (at >= 0) & (launch[at_kernel] <= end[at])
        result[at_kernel[inside]] = scopes["stated"][of_thread[at[inside]]]
    return result


def _group_hash(args: NcclArgs, groups: Sequence[GroupConfig]) -> int:
    """Return the hash of a process group, by its name and its ranks; 0 = it is not named."""
    name, ranks = args.group
    if not name:
        return 0
    for config in groups:
        if config.ranks and str(config.pg_name) == name:
            ranks = ",".join(map(str, config.ranks))
    return communicator_hash(name, ranks)


def _by_stream(streams: Array) -> Array:
    """Return a hash for each stream, by the place of its first kernel among those of all streams."""
    _, first, inverse = np.unique(streams, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))
    hashes = np.array([communicator_hash("stream", str(number)) for number in place.tolist()] + [0], np.uint64)
    result: Array = hashes[inverse]
    return result
