"""Hand-built GPU activity of one process, and trace folders out of it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from drumline.producers.activity.activity import Activity
from drumline.producers.replay.trace import read_trace

GEMM = "_Z4gemmPf"
ALL_REDUCE = "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"
ALL_GATHER = "_Z31ncclDevKernel_AllGather_RING_LL24ncclDevKernelArgsStorageILm4096EE"
SEND_RECV = "_Z22ncclDevKernel_SendRecv24ncclDevKernelArgsStorageILm4096EE"
WORLD = 0xDD318007BDA2B640
UINT8, UINT16, UINT32, UINT64, INT32, INT64 = pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int32(), pa.int64()
KERNEL = {
    "name": pa.string(), "start": UINT64, "duration": UINT64, "stream_id": UINT32, "correlation_id": UINT32,
    "grid_x": INT32, "grid_y": INT32, "grid_z": INT32, "block_x": INT32, "block_y": INT32, "block_z": INT32,
    "cluster_x": UINT32, "registers_per_thread": UINT16, "static_shared_memory": INT32, "dynamic_shared_memory": INT32,
    "local_memory_per_thread": UINT32, "shared_memory_executed": UINT32, "graph_id": UINT32, "graph_node_id": UINT64,
    "rank": UINT8,
}  # fmt: skip
MEMCPY = {
    "copy_kind": UINT8, "src_kind": UINT8, "dst_kind": UINT8, "flags": UINT8, "bytes": UINT64, "start": UINT64,
    "duration": UINT64, "stream_id": UINT32, "correlation_id": UINT32, "graph_id": UINT32, "graph_node_id": UINT64,
    "rank": UINT8,
}  # fmt: skip
MEMSET = {
    "value": UINT32, "bytes": UINT64, "start": UINT64, "duration": UINT64, "stream_id": UINT32,
    "correlation_id": UINT32, "graph_id": UINT32, "graph_node_id": UINT64, "memory_kind": UINT16, "rank": UINT8,
}  # fmt: skip
MARKER = {
    "flags": INT32, "timestamp": UINT64, "id": UINT32, "name": pa.string(), "domain": pa.string(), "rank": UINT8,
}  # fmt: skip
PAYLOAD = {"id": UINT32, "schema": UINT32, "payload": pa.binary(), "rank": UINT8}
_SAMPLED = (
    "pcie_tx", "pcie_rx", "throttle", "power_mw", "mem_clock", "energy_mj", "util_gpu", "temp", "ts", "gpu",
    "util_mem", "fan", "mem_total", "ecc_unc", "sm_clock", "mem_used",
)  # fmt: skip
NVML = dict.fromkeys(_SAMPLED, INT64) | {"uuid": pa.string()}
SCHEMAS = {
    "kernel": KERNEL, "memcpy": MEMCPY, "memset": MEMSET, "marker": MARKER, "marker_payload": PAYLOAD, "nvml": NVML,
}  # fmt: skip


class Recorder:
    """Collects rows of the recorded tables. Times in ns; everything in the order in which it was launched."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
        self._correlation = 0
        self._range = 0

    def _add(self, table: str, **values: Any) -> None:
        row = {name: ("" if kind == pa.string() else 0) for name, kind in SCHEMAS[table].items()}
        self.rows[table].append({**row, **values})

    def kernel(self, name: str, start: int, end: int, *, rank: int = 0, grid: int = 1, **more: Any) -> None:
        self._correlation += 1
        more = {"correlation_id": self._correlation, "grid_x": grid, "grid_y": 1, "grid_z": 1, **more}
        self._add("kernel", name=name, start=start, duration=end - start, rank=rank, **more)

    def copy(self, kind: int, start: int, end: int, *, rank: int = 0, size: int = 8) -> None:
        self._correlation += 1
        ids = {"correlation_id": self._correlation, "flags": 1, "src_kind": 1, "dst_kind": 3}
        self._add("memcpy", copy_kind=kind, start=start, duration=end - start, bytes=size, rank=rank, **ids)

    def memset(self, start: int, end: int, *, rank: int = 0) -> None:
        self._add("memset", start=start, duration=end - start, bytes=4, memory_kind=3, rank=rank)

    def range(
        self, name: str, start: int, end: int | None, *, rank: int = 0, domain: str = "", end_name: str = ""
    ) -> int:
        """An NVTX range; `end` None = never closed. Returns its id."""
        self._range += 1
        ids = {"id": self._range, "domain": domain, "rank": rank}
        self._add("marker", flags=2, timestamp=start, name=name, **ids)
        if end is not None:
            self._add("marker", flags=4, timestamp=end, name=end_name, **ids)
        return self._range

    def call(
        self, name: str, start: int, *, rank: int = 0, communicator: int = WORLD, size: int = 64, payload: bool = True
    ) -> None:
        """An NCCL call: range in NCCL's domain, with payload."""
        id_ = self.range(name, start, start + 1, rank=rank, domain="NCCL")
        if payload:
            data = struct.pack("<QQQ", communicator, size, 0)
            self._add("marker_payload", id=id_, schema=5, payload=data, rank=rank)

    def sample(self, time_ns: int, rank: int = 0) -> None:
        self._add("nvml", ts=time_ns, gpu=rank, uuid=f"GPU-{rank}", util_gpu=50)

    def write(self, folder: Path, ranks: int = 1, **manifest: Any) -> Path:
        """A trace folder; tables without rows are left out."""
        folder.mkdir(parents=True, exist_ok=True)
        processes = [
            {"rank": r, "pid": 10 + r, "host": f"node-{'ab'[r % 2]}", "gpu_index": r, "gpu_uuid": f"GPU-{r}"}
            for r in range(ranks)
        ]
        (folder / "manifest.json").write_text(json.dumps({"ranks": processes, "gpu": "Test GPU", **manifest}))
        for name, rows in self.rows.items():
            if rows:
                schema = pa.schema(list(SCHEMAS[name].items()))
                pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{name}.parquet")
        return folder

    def activity(self, folder: Path) -> Activity:
        """Return the activity of rank 0, through the files."""
        return read_trace(self.write(folder)).activities[0]


def lockstep(ranks: int = 2, steps: int = 4, slow: dict[int, tuple[int, int, int]] | None = None) -> Recorder:
    """A small data-parallel job: per step 60 us of compute, then one all-reduce that all ranks leave together.

    `slow`: rank -> (first step, last step, extra ns of compute).
    """
    recorder = Recorder()
    now = 1_000_000_000
    for step in range(steps):
        ready = {}
        for rank in range(ranks):
            first, last, extra = (slow or {}).get(rank, (0, -1, 0))
            work = 60_000 + (extra if first <= step <= last else 0)
            recorder.range(f"step {step}", now, now + 5_000, rank=rank)
            recorder.copy(1, now + 500, now + 900, rank=rank)
            recorder.kernel(GEMM, now + 1_000, now + 1_000 + work, rank=rank, grid=8)
            recorder.call("ncclAllReduce", now + 2_000, rank=rank)
            ready[rank] = now + 1_000 + work + 100 * rank
        leave = max(ready.values()) + 10_000
        for rank in range(ranks):
            recorder.kernel(ALL_REDUCE, ready[rank], leave, rank=rank)
            recorder.sample(leave, rank)
        now = leave + 2_000
    return recorder


def column(table: Any, name: str) -> list[int]:
    return np.asarray(table[name]).tolist()
