"""Decoded GPU activity of one process, the common form of CUPTI buffers and recorded traces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumline.producers.activity.table import Table
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: CUPTI_ACTIVITY_FLAG_MARKER_START and _END (CUpti_ActivityFlag); instantaneous markers (1) are not ranges.
MARKER_START = 2
MARKER_END = 4
#: CUpti_ActivityMemcpyKind: 1 HtoD, 2 DtoH, 3 HtoA, 4 AtoH cross between host and device; 9 is host to host.
HOST_COPIES = (1, 2, 3, 4)
HOST_TO_HOST = 9
#: Kind of memsets in gpu.memcpy.v1; CUPTI does not use it.
MEMSET = 64


def empty(topic: Topic) -> Table:
    """Return a table of a topic's columns without rows."""
    spec = model(topic)
    return Table({c.name: np.empty(0, c.dtype) for c in spec.columns}, dict.fromkeys(spec.dictionaries, ()))


def _no_markers() -> Table:
    dtypes: dict[str, Any] = {"id": "<u4", "time_ns": "<i8", "flags": "<i4", "name": "<u4", "domain": "<u4"}
    return Table({k: np.empty(0, v) for k, v in dtypes.items()}, {"names": (), "domains": ()})


def _no_payloads() -> Table:
    dtypes: dict[str, Any] = {"id": "<u4", "communicator": "<u8", "bytes": "<u8", "peer": "<i4"}
    return Table({k: np.empty(0, v) for k, v in dtypes.items()})


@dataclass(frozen=True)
class Activity:
    """Holds the activity of one process; rows in any order, times in ns since the epoch.

    `kernels`, `copies` (memsets among them), `samples`: columns as in gpu.kernel.v1, gpu.memcpy.v1, gpu.device.v1.
    `markers`: id u4, time_ns i8, flags i4, name and domain (indices into names, domains).
    `payloads`: id u4 (of the marker), communicator u8, bytes u8, peer i4 (see nccl.payload_fields).
    `invalid`: topic -> number of records that were dropped because their times are impossible.
    """

    kernels: Table = field(default_factory=lambda: empty(Topic.KERNEL))
    copies: Table = field(default_factory=lambda: empty(Topic.MEMCPY))
    markers: Table = field(default_factory=_no_markers)
    payloads: Table = field(default_factory=_no_payloads)
    samples: Table = field(default_factory=lambda: empty(Topic.DEVICE))
    invalid: dict[Topic, int] = field(default_factory=dict)


def end_ns(table: Table) -> Array:
    """Return the end of every row; int64 ns."""
    end: Array = table["start_ns"] + table["duration_ns"].astype(np.int64)
    return end
