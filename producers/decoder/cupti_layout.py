"""Field offsets and record sizes of CUPTI's activity records.

Fields as in CUpti_ActivityKernel9..13, CUpti_ActivityMemcpy5..7, CUpti_ActivityMemcpyPtoP4, CUpti_ActivityMemset4..5,
CUpti_ActivityMarker2, CUpti_ActivityMarkerData..2 and CUpti_ActivityAPI (cupti_activity.h, CUDA 12.3 to 13.5). Newer
structs only grew at the end, so one table of offsets serves every size listed here; a size that is not listed is not
decoded.
tests/producers/decoder/test_cupti_decode.py compares this with cupti-python's dtypes where that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: CUpti_ActivityKind.
MEMCPY, MEMSET, DRIVER, RUNTIME, KERNEL, MARKER, MARKER_DATA = 1, 2, 4, 5, 10, 12, 13
#: CUPTI_ACTIVITY_KIND_MEMCPY2, copies from GPU to GPU. It stays on while recording is off; then they are only counted.
PEER_COPY = 22
#: CUpti_ActivityMarkerData.payloadKind of an NVTX extended payload: a pointer to {u64 schema, u64 size, pointer}.
EXTENDED_PAYLOAD = 6


@dataclass(frozen=True)
class Layout:
    """Describes one struct. `sizes`: of its records, by release; bytes. `fields`: name -> (dtype, offset), aligned."""

    struct: str
    sizes: tuple[int, ...]
    fields: Mapping[str, tuple[str, int]]


_CALL = Layout(
    "api",
    (40,),
    {"start": ("<u8", 8), "end": ("<u8", 16), "thread_id": ("<u4", 28), "correlation_id": ("<u4", 32)},
)
LAYOUTS: dict[int, Layout] = {
    KERNEL: Layout(
        "kernel",
        (208, 216, 224, 232, 248),
        {
            "registers_per_thread": ("<u2", 6),
            "start": ("<u8", 16),
            "end": ("<u8", 24),
            "device_id": ("<u4", 40),
            "stream_id": ("<u4", 48),
            "grid_x": ("<i4", 52),
            "grid_y": ("<i4", 56),
            "grid_z": ("<i4", 60),
            "block_x": ("<i4", 64),
            "block_y": ("<i4", 68),
            "block_z": ("<i4", 72),
            "static_shared_memory": ("<i4", 76),
            "dynamic_shared_memory": ("<i4", 80),
            "local_memory_per_thread": ("<u4", 84),
            "correlation_id": ("<u4", 92),
            "name": ("<u8", 104),
            "shared_memory_executed": ("<u4", 140),
            "graph_node_id": ("<u8", 144),
            "graph_id": ("<u4", 156),
            "cluster_x": ("<u4", 176),
        },
    ),
    MEMCPY: Layout(
        "memcpy",
        (88, 96, 112),
        {
            "copy_kind": ("<u1", 4),
            "src_kind": ("<u1", 5),
            "dst_kind": ("<u1", 6),
            "flags_": ("<u1", 7),
            "bytes": ("<u8", 8),
            "start": ("<u8", 16),
            "end": ("<u8", 24),
            "device_id": ("<u4", 32),
            "stream_id": ("<u4", 40),
            "correlation_id": ("<u4", 44),
            "graph_id": ("<u4", 72),
        },
    ),
    PEER_COPY: Layout(
        "memcpy_pto_p",
        (96,),
        {
            "copy_kind": ("<u1", 4),
            "src_kind": ("<u1", 5),
            "dst_kind": ("<u1", 6),
            "flags_": ("<u1", 7),
            "bytes": ("<u8", 8),
            "start": ("<u8", 16),
            "end": ("<u8", 24),
            "device_id": ("<u4", 32),
            "stream_id": ("<u4", 40),
            "correlation_id": ("<u4", 60),
            "graph_id": ("<u4", 80),
        },
    ),
    MEMSET: Layout(
        "memset",
        (88, 104),
        {
            "bytes": ("<u8", 8),
            "start": ("<u8", 16),
            "end": ("<u8", 24),
            "device_id": ("<u4", 32),
            "stream_id": ("<u4", 40),
            "correlation_id": ("<u4", 44),
            "flags_": ("<u2", 48),
            "memory_kind": ("<u2", 50),
            "graph_id": ("<u4", 72),
        },
    ),
    DRIVER: _CALL,
    RUNTIME: _CALL,
    MARKER: Layout(
        "marker",
        (56,),
        {
            "flags_": ("<i4", 4),
            "timestamp": ("<u8", 8),
            "id": ("<u4", 16),
            "thread_": ("<u4", 28),  # object_id.pt.thread_id
            "name": ("<u8", 40),
            "domain": ("<u8", 48),
        },
    ),
    MARKER_DATA: Layout(
        "marker_data",
        (32, 40),
        {"id": ("<u4", 8), "payload_kind": ("<i4", 12), "payload": ("<u8", 16)},
    ),
}
