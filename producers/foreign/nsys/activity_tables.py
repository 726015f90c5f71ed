"""Kernels, copies and NVTX ranges of one process in an export, as the columns that a live decoder gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from drumline.producers.activity.activity import MARKER_END, MARKER_START, MEMSET, Activity, empty
from drumline.producers.activity.table import Table, concatenate_tables
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.foreign.nsys.database import NsysDatabase
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

KERNELS, COPIES, MEMSETS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET"))
RANGES = "NVTX_EVENTS"
#: ENUM_NSYS_EVENT_TYPE: NvtxPushPopRange, NvtxStartEndRange, NvtxDomainCreate.
PUSH_POP, START_END, DOMAIN_CREATE = 59, 60, 75
#: Low bits of globalTid are the thread, those above the process (globalPid has zeros there).
THREAD_BITS = 24
#: Column of gpu.kernel.v1 -> column of the export.
_KERNEL = {
    "stream": "streamId",
    "correlation": "correlationId",
    "grid_x": "gridX",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "cluster_x": "clusterX",
    "registers": "registersPerThread",
    "shared_static": "staticSharedMemory",
    "shared_dynamic": "dynamicSharedMemory",
    "shared_executed": "sharedMemoryExecuted",
    "local_per_thread": "localMemoryPerThread",
    "graph": "graphId",
    "graph_node": "graphNodeId",
}
_COPY = {"bytes": "bytes", "stream": "streamId", "correlation": "correlationId"}
#: Kinds of copies from here on are migrations of unified memory, which nobody asked for.
_FIRST_MIGRATION = 11
#: PyTorch numbers its operators in their names: a name each would be a dictionary as long as the table.
_NUMBERED = re.compile(r", (?:op_id|seq) = .*$", re.DOTALL)


def kernels(database: NsysDatabase, process: int, epoch_ns: int) -> Table:
    """Return the kernels of a process (its globalPid): columns of gpu.kernel.v1, times in ns since the epoch."""
    dtypes = {column.name: column.dtype for column in model(Topic.KERNEL).columns}
    wanted: dict[str, tuple[str, Any]] = {name: (source, dtypes[name]) for name, source in _KERNEL.items()}
    wanted |= {"_start": ("start", np.int64), "_end": ("end", np.int64), "_name": ("demangledName", np.int64)}
    columns = database.columns(KERNELS, wanted, "globalPid = ?", (process,))
    name, names = _dictionary(database, columns.pop("_name"))
    return Table({"name": name, **_times(columns, epoch_ns), **columns}, {"names": names})


def copies(database: NsysDatabase, process: int, epoch_ns: int) -> Table:
    """Return the copies and memsets of a process: columns of gpu.memcpy.v1. Migrations of unified memory are left out.

    The export does not tell which copies are asynchronous; none counts as such.
    """
    parts = []
    for table in (COPIES, MEMSETS):
        dtypes = {column.name: column.dtype for column in model(Topic.MEMCPY).columns}
        wanted: dict[str, tuple[str, Any]] = {name: (source, dtypes[name]) for name, source in _COPY.items()}
        wanted |= {"_start": ("start", np.int64), "_end": ("end", np.int64), "_kind": ("copyKind", np.int64)}
        wanted |= {"_source": ("srcKind", np.int64), "_target": ("dstKind", np.int64), "_set": ("memKind", np.int64)}
        where = "globalPid = ?" if table == MEMSETS else f"globalPid = ? AND copyKind < {_FIRST_MIGRATION}"
        if not database.has_columns(table, "start", "end", "globalPid"):
            continue
        columns = database.columns(table, wanted, where, (process,))
        kind, source, target, set_ = (columns.pop(name) for name in ("_kind", "_source", "_target", "_set"))
        none = np.zeros(len(kind), np.uint8)
        if table == MEMSETS:
            kinds = {"kind": none + np.uint8(MEMSET), "src_kind": none, "dst_kind": _memory(set_)}
        else:
            kinds = {"kind": kind.astype(np.uint8), "src_kind": _memory(source), "dst_kind": _memory(target)}
        parts.append(
            Table({**kinds, **_times(columns, epoch_ns), **columns, "is_async": none, "graph": none.astype(np.uint32)})
        )
    return concatenate_tables(parts) if parts else empty(Topic.MEMCPY)


def markers(database: NsysDatabase, process: int, epoch_ns: int) -> tuple[Table, Array]:
    """Return the NVTX ranges of a process as markers (see Activity), a start and an end each with ids 1, 2, ...

    The second value is the row of NVTX_EVENTS of each range, in the order of ids.
    """
    wanted: dict[str, tuple[str, Any]] = {
        "start": ("start", np.int64),
        "end": ("end", np.int64),
        "domain": ("domainId", np.int64),
        "text": ("textId", np.int64),
        "row": ("rowid", np.int64),
    }
    if not database.has_columns(RANGES, "start", "end", "eventType", "globalTid"):
        return Activity().markers, np.empty(0, np.int64)
    where = f"eventType IN ({PUSH_POP}, {START_END}) AND end IS NOT NULL AND (globalTid >> {THREAD_BITS}) = ?"
    parameters = (process >> THREAD_BITS,)
    columns = database.columns(RANGES, wanted, where, parameters)
    name, names = _range_names(database, columns["text"], where, parameters)
    domain, domains = _domains(database, columns["domain"], name, names)
    table = _markers(columns["start"] + epoch_ns, columns["end"] + epoch_ns, (name, names), (domain, domains))
    return table, columns["row"]


def _markers(start: Array, end: Array, name: tuple[Array, Sequence[str]], domain: tuple[Array, Sequence[str]]) -> Table:
    """Return pairs of markers. `name`, `domain`: of each range as an index (u4), and their texts."""
    count = len(start)
    ids = np.arange(1, count + 1, dtype=np.uint32)
    columns = {
        "id": np.tile(ids, 2),
        "time_ns": np.concatenate([start, end]),
        "flags": np.repeat(np.array([MARKER_START, MARKER_END], np.int32), count),
        "name": np.tile(name[0], 2),
        "domain": np.tile(domain[0], 2),
    }
    return Table(columns, {"names": name[1], "domains": domain[1]})


def _range_names(
    database: NsysDatabase, ids: Array, where: str, parameters: Sequence[Any]
) -> tuple[Array, tuple[str, ...]]:
    """Return the name of each range as an index, and the names. A range has its text itself, or by its id."""
    code, names = _dictionary(database, ids)
    if not database.has_columns(RANGES, "text"):
        return code, names
    known = {name: index for index, name in enumerate(names)}
    query = f"SELECT text FROM {RANGES} WHERE {where}"  # the terms of markers()
    for row, (text,) in enumerate(database.iterate(query, parameters)):
        if text is not None:
            code[row] = known.setdefault(_NUMBERED.sub("", str(text)), len(known))
    return code, tuple(known)


def _domains(database: NsysDatabase, ids: Array, name: Array, names: Sequence[str]) -> tuple[Array, tuple[str, ...]]:
    """Return the domain of each range as an index, and their names.

    Where the export lacks the names of domains, NCCL's is the one, other than the default, whose ranges are its calls.
    """
    query = f"SELECT DISTINCT domainId, text FROM {RANGES} WHERE eventType = {DOMAIN_CREATE} AND text IS NOT NULL"
    named = {int(i or 0): str(text) for i, text in database.rows(query)} if database.has_columns(RANGES, "text") else {}
    known, index = np.unique(ids, return_inverse=True)
    is_call = nccl.range_operations(names) > 0
    out = []
    for number in known.tolist():
        calls = is_call[name[ids == number]].any() if number and len(names) else False
        out.append(named.get(number) or (nccl.DOMAIN if calls else ""))
    return index.astype(np.uint32), tuple(out)


def _dictionary(database: NsysDatabase, ids: Array) -> tuple[Array, tuple[str, ...]]:
    """Return texts by id as (index u4 of each, texts); equal texts have one index."""
    known, index = np.unique(ids, return_inverse=True)
    texts = database.texts(known)
    codes: dict[str, int] = {}
    code = np.array(
        [codes.setdefault(_NUMBERED.sub("", texts.get(i, "")), len(codes)) for i in known.tolist()], np.uint32
    )
    return code[index], tuple(codes)


def _times(columns: dict[str, Array], epoch_ns: int) -> dict[str, Array]:
    """Take `_start` and `_end` out of the columns and return start_ns and duration_ns; an end before its start is 0."""
    start, end = columns.pop("_start"), columns.pop("_end")
    return {"start_ns": start + epoch_ns, "duration_ns": np.maximum(end - start, 0).astype(np.uint64)}


def _memory(kind: Array) -> Array:
    """Return CUpti_ActivityMemoryKind of an export's kinds, which count from pageable = 0 and have 7 for unknown."""
    return np.where((kind >= 0) & (kind < 7), kind + 1, 0).astype(np.uint8)
