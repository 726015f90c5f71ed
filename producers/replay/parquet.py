"""The Parquet tables of a recorded trace, with the columns that a live decoder gives and a `rank` column each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from drumline.producers.activity.activity import MEMSET
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl.kernel_names import payload_fields
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Column of a topic -> recorded column, where they differ.
KERNEL_NAMES = {
    "start_ns": "start",
    "duration_ns": "duration",
    "stream": "stream_id",
    "correlation": "correlation_id",
    "registers": "registers_per_thread",
    "shared_static": "static_shared_memory",
    "shared_dynamic": "dynamic_shared_memory",
    "shared_executed": "shared_memory_executed",
    "local_per_thread": "local_memory_per_thread",
    "graph": "graph_id",
    "graph_node": "graph_node_id",
}
COPY_NAMES = {
    "kind": "copy_kind",
    "start_ns": "start",
    "duration_ns": "duration",
    "stream": "stream_id",
    "correlation": "correlation_id",
    "is_async": "flags",
    "graph": "graph_id",
}
_SAMPLE = {
    "time_ns": "ts",
    "util_memory": "util_mem",
    "memory_used": "mem_used",
    "memory_total": "mem_total",
    "temperature": "temp",
    "memory_clock": "mem_clock",
    "throttle_reasons": "throttle",
    "pcie_rx_kbps": "pcie_rx",
    "pcie_tx_kbps": "pcie_tx",
    "ecc_uncorrected": "ecc_unc",
}
#: Columns of kernels that derivation needs; the rest is only published.
KERNEL_NEEDED = ("name", "start_ns", "duration_ns", "correlation", "stream", "grid_x", "grid_y", "grid_z", "graph")
#: CUpti_ActivityMemcpy.flags: CUPTI_ACTIVITY_FLAG_MEMCPY_ASYNC.
_ASYNC = 1


class BadTrace(ValueError):
    """A folder is no recorded trace or cannot be read; the message names the file and the reason."""


def _open(folder: Path, name: str, columns: list[str], texts: tuple[str, ...] = ()) -> pa.Table | None:
    """Return a Parquet table with exactly these columns; None when the file is missing. Raises BadTrace."""
    path = folder / f"{name}.parquet"
    if not path.is_file():
        return None
    try:
        file = pq.ParquetFile(path, read_dictionary=list(texts))
        missing = sorted(set(columns) - set(file.schema_arrow.names))
        if missing:
            raise BadTrace(f"{path}: columns {', '.join(missing)} are missing")
        table = file.read(columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise BadTrace(f"{path}: {error}") from None
    for column in columns:
        if table[column].null_count:
            raise BadTrace(f"{path}: column {column} has empty values")
    return table


def _numbers(folder: Path, name: str, table: pa.Table, column: str, dtype: Any) -> Array:
    try:
        return np.asarray(table[column].to_numpy()).astype(dtype, copy=False)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise BadTrace(f"{folder / name}.parquet: column {column} is not numeric ({error})") from None


def _texts(table: Any, column: str) -> tuple[Array, list[str]]:
    """Return (indices u4, strings) of a string column."""
    data = table[column]
    if not pa.types.is_dictionary(data.type):
        data = pc.dictionary_encode(data)
    data = data.unify_dictionaries()
    if data.num_chunks == 0:
        return np.empty(0, np.uint32), []
    indices = np.concatenate([np.asarray(chunk.indices) for chunk in data.chunks]).astype(np.uint32)
    return indices, [str(string) for string in data.chunk(0).dictionary.to_pylist()]


@dataclass(frozen=True)
class _Source:
    """A recorded table: file name, topic whose columns it has, their recorded names where those differ.

    `only`: columns to read, None = all. `extra`: columns that the topic does not have. `computed`: columns of the topic
    that the caller computes.
    """

    name: str
    topic: Topic
    renamed: Mapping[str, str]
    only: Collection[str] | None = None
    extra: tuple[str, ...] = ("rank",)
    computed: Collection[str] = ()


def _read(folder: Path, recorded: _Source) -> Table | None:
    """Return a recorded table with the topic's columns; missing ones are zeros (-1 in device samples)."""
    name, topic, renamed, only = recorded.name, recorded.topic, recorded.renamed, recorded.only
    columns = [c for c in model(topic).columns if (only is None or c.name in only) and c.name not in recorded.computed]
    path = folder / f"{name}.parquet"
    if not path.is_file():
        return None
    try:
        present = set(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise BadTrace(f"{path}: {error}") from None
    required = {"start_ns", "duration_ns", "time_ns", "name", "correlation", "kind", "bytes"}
    source = {c.name: renamed.get(c.name, c.name) for c in columns}
    source = {k: v for k, v in source.items() if v in present or k in required}
    texts = tuple(source[c.name] for c in columns if c.dictionary and c.name in source)
    table = _open(folder, name, [*source.values(), *recorded.extra], texts)
    assert table is not None
    result: dict[str, Array] = {}
    dictionaries: dict[str, list[str]] = {}
    for column in columns:
        if column.name not in source:
            result[column.name] = np.full(table.num_rows, -1 if topic is Topic.DEVICE else 0, column.dtype)
        elif column.dictionary:
            result[column.name], dictionaries[column.dictionary] = _texts(table, source[column.name])
        else:
            result[column.name] = _numbers(folder, name, table, source[column.name], column.dtype)
    for column_name in recorded.extra:
        if column_name == "uuid":
            result["uuid"] = np.array(table["uuid"].to_pylist(), dtype=object)
        else:
            result[column_name] = _numbers(folder, name, table, column_name, np.int64)
    return Table(result, dictionaries)


def kernels(folder: Path, full: bool) -> Table:
    """Return the kernels; `full`: all columns, else those that derivation needs. Raises BadTrace."""
    table = _read(folder, _Source("kernel", Topic.KERNEL, KERNEL_NAMES, only=None if full else KERNEL_NEEDED))
    if table is None:
        raise BadTrace(f"{folder / 'kernel.parquet'} is missing: nothing to replay")
    return table


def copies(folder: Path) -> Table | None:
    """Return the memory copies, None if none were recorded. Raises BadTrace."""
    table = _read(folder, _Source("memcpy", Topic.MEMCPY, COPY_NAMES))
    if table is None:
        return None
    return Table({**table.columns, "is_async": (table["is_async"] & _ASYNC).astype(np.uint8)})


def memsets(folder: Path) -> Table | None:
    """Return the memsets as rows of copies, None if none were recorded. Raises BadTrace."""
    computed = ("kind", "src_kind", "dst_kind", "is_async")
    source = _Source("memset", Topic.MEMCPY, COPY_NAMES, extra=("rank", "memory_kind"), computed=computed)
    table = _read(folder, source)
    if table is None:
        return None
    columns = dict(table.columns)
    target = columns.pop("memory_kind").astype(np.uint8)
    none = np.zeros(table.rows, np.uint8)
    return Table({**columns, "kind": none + np.uint8(MEMSET), "src_kind": none, "dst_kind": target, "is_async": none})


def markers(folder: Path) -> Table | None:
    """Return the NVTX markers, None if none were recorded. Raises BadTrace."""
    table = _open(folder, "marker", ["id", "timestamp", "flags", "name", "domain", "rank"], ("name", "domain"))
    if table is None:
        return None
    name, names = _texts(table, "name")
    domain, domains = _texts(table, "domain")
    columns = {
        "id": _numbers(folder, "marker", table, "id", np.uint32),
        "time_ns": _numbers(folder, "marker", table, "timestamp", np.int64),
        "flags": _numbers(folder, "marker", table, "flags", np.int32),
        "name": name,
        "domain": domain,
        "rank": _numbers(folder, "marker", table, "rank", np.int64),
    }
    return Table(columns, {"names": names, "domains": domains})


def payloads(folder: Path) -> Table | None:
    """Return the payloads of NCCL's markers, None if none were recorded. Raises BadTrace."""
    table = _open(folder, "marker_payload", ["id", "payload", "rank"])
    if table is None:
        return None
    values: list[Any] = table["payload"].to_pylist()
    if not all(isinstance(p, bytes) for p in values):
        raise BadTrace(f"{folder / 'marker_payload.parquet'}: column payload is not binary")
    offsets = np.concatenate([[0], np.cumsum([len(p) for p in values], dtype=np.int64)])
    communicator, size, peer, valid = payload_fields(b"".join(values), offsets)
    columns = {
        "id": _numbers(folder, "marker_payload", table, "id", np.uint32),
        "communicator": communicator,
        "bytes": size,
        "peer": peer,
        "rank": _numbers(folder, "marker_payload", table, "rank", np.int64),
    }
    return Table(columns).take(valid)


def samples(folder: Path) -> Table | None:
    """Return device samples: columns of gpu.device.v1, and `uuid` (object array of str) and `gpu` (index)."""
    return _read(folder, _Source("nvml", Topic.DEVICE, _SAMPLE, extra=("uuid", "gpu")))
