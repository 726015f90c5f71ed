"""Writes traces as one recording of drumline, rank by rank: memory holds one rank's columns at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from drumline.producers.activity.activity import MEMSET
from drumline.producers.activity.table import Table
from drumline.producers.foreign.process_trace import ProcessTrace
from drumline.producers.foreign.trace_summary import TraceSummary
from drumline.producers.replay.parquet import COPY_NAMES, KERNEL_NAMES
from drumline.producers.replay.recording import LIGHT
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Recorded names of a marker's columns.
_MARKER = {"time_ns": "timestamp"}
_STRINGS = pa.dictionary(pa.int32(), pa.string())
_DICTIONARIES = {"name": "names", "domain": "domains"}


class RecordingWriter:
    """Writes the tables of a recording into a folder, one row group a rank and table."""

    def __init__(self, folder: Path) -> None:
        """Make the folder. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._stack, self._writers = ExitStack(), dict[str, pq.ParquetWriter]()

    def write(self, trace: ProcessTrace) -> None:
        """Write one process's rows. Raises OSError."""
        activity, rank = trace.activity, trace.rank
        memsets = activity.copies["kind"] == MEMSET
        self._append("kernel", _columns(activity.kernels, Topic.KERNEL, KERNEL_NAMES), rank)
        self._append("memcpy", _columns(activity.copies.take(~memsets), Topic.MEMCPY, COPY_NAMES), rank)
        copied = _columns(activity.copies.take(memsets), Topic.MEMCPY, COPY_NAMES)
        copied["memory_kind"] = copied.pop("dst_kind")
        self._append("memset", {k: v for k, v in copied.items() if k not in ("copy_kind", "src_kind", "flags")}, rank)
        markers = {_MARKER.get(k, k): _arrow(activity.markers, k) for k in activity.markers.columns}
        self._append("marker", markers, rank)
        if activity.payloads.rows:
            ids = pa.array(activity.payloads["id"])
            self._append("marker_payload", {"id": ids, "payload": _payloads(activity.payloads)}, rank)

    def finish(self, manifest: Mapping[str, Any]) -> None:
        """Write manifest.json last: without it, a folder is no recording. Raises OSError."""
        self._stack.close()
        (self._folder / "manifest.json").write_text(json.dumps(manifest, indent=1))

    def close(self) -> None:
        """Close the tables without a manifest, after a failure."""
        self._stack.close()

    def _append(self, name: str, columns: dict[str, Any], rank: int) -> None:
        rows = len(next(iter(columns.values())))
        table = pa.table({**columns, "rank": pa.array(np.full(rows, rank, np.int32))})
        if name not in self._writers:
            path = self._folder / f"{name}.parquet"
            writer = pq.ParquetWriter(path, table.schema, compression="zstd")
            self._writers[name] = self._stack.enter_context(writer)
        self._writers[name].write_table(table)


def write_recording(folder: Path, traces: Iterable[ProcessTrace], run: str) -> TraceSummary:
    """Write the traces as a recording and return what they hold. Raises BadTrace, OSError, and writes no manifest."""
    writer, summary = RecordingWriter(folder), TraceSummary()
    try:
        for trace in traces:
            writer.write(trace)
            summary.add(trace)
        writer.finish(manifest_of(summary, run))
    finally:
        writer.close()
    return summary


def manifest_of(summary: TraceSummary, run: str) -> dict[str, Any]:
    """Return the manifest of a recording of these processes. `run`: its name."""
    ranks = [
        {
            "rank": process.rank,
            "pid": process.pid,
            "host": process.host,
            "gpu_index": process.gpu_index,
            "gpu_uuid": process.gpu_uuid,
        }
        for process in sorted(summary.processes, key=lambda process: process.rank)
    ]
    return {
        "run": run,
        "world_size": summary.world_size,
        "gpu": summary.gpu_model,
        **summary.versions,
        **({"tier": LIGHT} if summary.is_light else {}),
        **({"sampled_steps": True} if summary.sampled else {}),
        "recorded": f"imported from {', '.join(summary.formats)}",
        "imported_from": [process.path.name for process in summary.processes],
        "ranks": ranks,
        "phases": [],
    }


def _columns(table: Table, topic: Topic, recorded_names: Mapping[str, str]) -> dict[str, Any]:
    """Return the columns of a topic under their recorded names."""
    return {recorded_names.get(c.name, c.name): _arrow(table, c.name) for c in model(topic).columns}


def _arrow(table: Table, column: str) -> Any:
    if column not in _DICTIONARIES:
        return pa.array(table[column])
    strings = [text.encode("utf-8", "replace").decode() for text in table.dictionaries[_DICTIONARIES[column]]]
    indices: Any = pa.array(table[column].astype(np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array(strings, pa.string())).cast(_STRINGS)


def _payloads(payloads: Table) -> pa.Array[Any]:
    """Return NCCL's payloads: u64 communicator, u64 bytes, i4 peer."""
    packed: Array = np.zeros(payloads.rows, [("communicator", "<u8"), ("bytes", "<u8"), ("peer", "<i4")])
    for name in packed.dtype.names or ():
        packed[name] = payloads[name]
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(packed.dtype.itemsize), len(packed), [None, pa.py_buffer(packed.tobytes())]
    )
    return fixed.cast(pa.binary())
