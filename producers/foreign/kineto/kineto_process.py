"""One Kineto file as the activity of its process."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from drumline.producers.activity.activity import MARKER_END, MARKER_START, Activity, empty
from drumline.producers.activity.intervals import union
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.steps.steps import API_DOMAIN
from drumline.producers.foreign.bounded_file import BoundedFile
from drumline.producers.foreign.collective_calls import call_markers, joined_markers
from drumline.producers.foreign.kineto.event_chunks import EventChunks
from drumline.producers.foreign.kineto.event_columns import COPY, KERNEL, LAUNCH, OPERATOR, RANGE, WAIT, EventColumns
from drumline.producers.foreign.kineto.nccl_operations import calls_of_kernels
from drumline.producers.foreign.kineto.typed_events import FileInfo
from drumline.producers.foreign.process_trace import ProcessTrace
from drumline.producers.foreign.recognise import Format
from drumline.producers.ipc.host_sums import COLUMNS, UNIT_NS, to_text
from drumline.producers.replay.parquet import BadTrace
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Annotation of a step, and the name that derivation reads steps by.
_STEP = re.compile(r"^ProfilerStep#(\d{1,15})$")
#: Name that PyTorch's tensorboard_trace_handler gives a file: host and process id.
_WORKER = re.compile(r"^(?P<host>[A-Za-z0-9.-]+)_(?P<pid>\d+)\.\d+\.pt\.trace\.json")
_NO_MODEL = ""
#: Streams of one file: a job has some dozens, and each may be a process group of its own.
MOST_STREAMS = 1 << 16


def read_kineto(path: Path, progress: Callable[[int], None] = lambda size: None) -> ProcessTrace:
    """Read one file. Raises BadTrace with the file, the byte and what could be read until then."""
    columns = EventColumns()
    with BoundedFile(path, progress) as file:
        chunks = EventChunks(file)
        try:
            for events in chunks:
                columns.add(events)
                if len(columns.streams) > MOST_STREAMS:
                    raise BadTrace(f"{path}: kernels on more than {MOST_STREAMS:,} streams, as no job has")
        except BadTrace as error:
            raise BadTrace(f"{error} (until there: {_read_until_there(columns)})") from None
    if chunks.wrong:
        columns.left_out["event: a field has the wrong type"] += chunks.wrong
    info = chunks.info
    base = info.base_time_nanoseconds or 0
    kernels = _timed(columns.columns(KERNEL), base)
    if not len(kernels["start_ns"]):
        left_out = "; ".join(f"{number:,} left out, {reason}" for reason, number in columns.left_out.items())
        hint = left_out or "record with ProfilerActivity.CUDA on a GPU"
        raise BadTrace(f"{path}: no GPU kernels; {hint}")
    device = columns.devices.most_common(1)[0][0]
    worker = _WORKER.match(path.name)
    activity, notes = _activity(columns, kernels, base, info)
    return ProcessTrace(
        path=path,
        format=Format.KINETO,
        rank=_stated(info.distributed_info.rank if info.distributed_info else None, -1),
        world_size=_stated(info.distributed_info.world_size if info.distributed_info else None, 0),
        activity=activity,
        host=info.host_name or (worker["host"] if worker else ""),
        pid=columns.pids.most_common(1)[0][0] if columns.pids else int(worker["pid"]) if worker else 0,
        gpu_index=device,
        gpu_model=_model(info, device),
        versions={"nccl": v} if info.distributed_info and (v := info.distributed_info.nccl_version) else {},
        left_out=dict(columns.left_out),
        notes=notes,
    )


def _stated(number: int | None, unknown: int) -> int:
    return unknown if number is None or number < 0 else number


def _read_until_there(columns: EventColumns) -> str:
    """Return how many kernels could be read, and of which steps."""
    steps = [int(match[1]) for name in columns.range_names if (match := _STEP.match(name))]
    of = f" of steps {min(steps)} to {max(steps)}" if steps else ""
    return f"{len(columns.columns(KERNEL)['start_us']):,} kernels{of} could be read"


def _model(info: FileInfo, device: int) -> str:
    for known in info.device_properties or ():
        if known.id == device and known.name:
            return known.name
    return _NO_MODEL


def _timed(columns: dict[str, Array], base: int) -> dict[str, Array]:
    """Return columns with `start_ns` since the epoch."""
    start = columns["start_us"] * 1000 + columns["start_ns"] + base
    return {**{k: v for k, v in columns.items() if k != "start_us"}, "start_ns": start}


def _activity(
    columns: EventColumns, kernels: dict[str, Array], base: int, info: FileInfo
) -> tuple[Activity, tuple[str, ...]]:
    """Return the activity, and sentences on what was assumed of its operations."""
    names = tuple(columns.names)
    nccl_rows = np.flatnonzero(nccl.is_kernel(names)[kernels["name"]])
    nccl_rows = nccl_rows[np.lexsort((kernels["start_ns"][nccl_rows], kernels["correlation"][nccl_rows]))]
    ranges = _timed(columns.columns(RANGE), base)
    markers = _range_markers(ranges, tuple(columns.range_names))
    sums = _step_sums(ranges, tuple(columns.range_names), _timed(columns.columns(WAIT), base))
    nccl_kernels = {name: values[nccl_rows] for name, values in kernels.items()}
    launches, scopes = (_timed(columns.columns(kind), base) for kind in (LAUNCH, OPERATOR))
    groups = (info.distributed_info.pg_config if info.distributed_info else None) or ()
    stated = tuple(columns.nccl_args)
    calls, notes = calls_of_kernels(nccl_kernels, names, launches, scopes, stated, groups)
    called, payloads = call_markers(calls, len(ranges["start_ns"]) + sums.rows + 1)
    kernel_table = _topic_table(
        Topic.KERNEL,
        {**kernels, "shared_dynamic": kernels["shared"]},
        {"names": names},
    )
    copies = _timed(columns.columns(COPY), base)
    return (
        Activity(
            kernels=kernel_table,
            copies=_topic_table(Topic.MEMCPY, copies, {}),
            markers=joined_markers(joined_markers(markers, sums), called),
            payloads=payloads,
        ),
        notes,
    )


def _topic_table(topic: Topic, columns: dict[str, Array], dictionaries: Mapping[str, Sequence[str]]) -> Table:
    """Return a table of a topic's columns; those that Kineto does not have are 0."""
    rows = len(columns["start_ns"])
    result = {c.name: columns.get(c.name, np.zeros(rows, np.int64)).astype(c.dtype) for c in model(topic).columns}
    return Table(result, {**empty(topic).dictionaries, **dictionaries})


def _range_markers(ranges: dict[str, Array], names: Sequence[str]) -> Table:
    """Return the annotations as NVTX markers; ProfilerStep#N is the step N."""
    shown = [f"step {match[1]}" if (match := _STEP.match(name)) else name for name in names]
    count = len(ranges["start_ns"])
    times = np.empty(2 * count, np.int64)
    times[0::2], times[1::2] = ranges["start_ns"], ranges["start_ns"] + ranges["duration_ns"]
    columns: dict[str, Array] = {
        "id": np.repeat(np.arange(1, count + 1, dtype=np.uint32), 2),
        "time_ns": times,
        "flags": np.tile(np.array([MARKER_START, MARKER_END], np.int32), count),
        "name": np.repeat(ranges["name"].astype(np.uint32), 2),
        "domain": np.zeros(2 * count, np.uint32),
    }
    return Table(columns, {"names": shown, "domains": ("PyTorch",)})


def _step_sums(ranges: dict[str, Array], names: Sequence[str], synchronised: dict[str, Array]) -> Table:
    """Return the marks behind the steps, as the collector writes them: for how long the host waited for the GPU."""
    is_step = np.array([_STEP.match(name) is not None for name in names] + [False])
    steps = np.flatnonzero(is_step[ranges["name"]])
    start, end = ranges["start_ns"][steps], (ranges["start_ns"] + ranges["duration_ns"])[steps]
    waited = union((synchronised["start_ns"], synchronised["start_ns"] + synchronised["duration_ns"])).covered(
        start, end
    )
    unknown = (-UNIT_NS,) * (len(COLUMNS) - 1)
    count = len(steps)
    columns = {
        "id": (len(ranges["start_ns"]) + 1 + np.arange(count)).astype(np.uint32),
        "time_ns": end,
        "flags": np.full(count, MARKER_END, np.int32),
        "name": np.arange(count, dtype=np.uint32),
        "domain": np.zeros(count, np.uint32),
    }
    texts = tuple(to_text((*unknown, ns)) for ns in waited.tolist())
    return Table(columns, {"names": texts, "domains": (API_DOMAIN,)})
