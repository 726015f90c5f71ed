"""The processes of an Inspector log: their operations as calls and kernels, which collectives are derived from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from drumline.producers.activity.activity import Activity, empty
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.foreign.collective_calls import CollectiveCalls, call_markers
from drumline.producers.foreign.inspector.records import BadLine, InspectorRecord, read_record
from drumline.producers.foreign.process_trace import ProcessTrace
from drumline.producers.foreign.recognise import Format
from drumline.producers.replay.parquet import BadTrace
from drumline.schemas.topics import Topic

#: A line is an operation with some events of each channel: 64 channels are 16 kB.
LONGEST_LINE = 1 << 20


def read_inspector(path: Path) -> Iterator[ProcessTrace]:
    """Yield the processes of a log, by host and process id. Raises BadTrace.

    A process's rank is that in its largest communicator. Lines that cannot be read are counted in the notes.
    """
    records, notes = _records(path)
    processes: dict[tuple[str, int, int], list[InspectorRecord]] = defaultdict(list)
    for record in records:
        processes[record.host, record.pid, 0 if record.pid else record.rank].append(record)
    if not processes:
        raise BadTrace(f"{path}: no operation could be read{': ' + notes[0] if notes else ''}")
    for (host, pid, _), recorded in sorted(processes.items(), key=lambda item: item[0]):
        timed = [record for record in recorded if record.start_us is not None and record.call_us is not None]
        if not timed and any(record.call_us is not None for record in recorded):
            raise BadTrace(
                f"{path}: the operations have times of their calls, and none of the GPU: the plugin measured on "
                "the host (coll_timing_source), which shows no late rank"
            )
        if not timed:
            raise BadTrace(
                f"{path}: the operations have lengths, and no times: NCCL_INSPECTOR_DUMP_VERBOSE=1 lets the plugin "
                "write them"
            )
        if len(timed) < len(recorded):
            notes = [*notes, f"{len(recorded) - len(timed)} operations have no times and are left out"]
        world = max(timed, key=lambda record: record.ranks)
        yield ProcessTrace(
            path=path,
            format=Format.INSPECTOR,
            rank=world.rank,
            world_size=world.ranks,
            pid=pid,
            host=host,
            is_light=True,
            activity=_activity(timed),
            notes=tuple(notes),
        )
        notes = []


def _records(path: Path) -> tuple[list[InspectorRecord], list[str]]:
    """Return the operations of a log, and what could not be read."""
    out: list[InspectorRecord] = []
    bad: list[str] = []
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE):
                number += 1
                if not line.strip():
                    continue
                try:
                    if (record := read_record(line)) is not None:
                        out.append(record)
                except BadLine as error:
                    bad.append(f"line {number}: {error}")
    except OSError as error:
        raise BadTrace(f"{path}: {error}") from None
    more = f", and {len(bad) - 1} more lines" if len(bad) > 1 else ""
    return out, [f"{bad[0]}{more}: left out"] if bad else []


def _activity(records: list[InspectorRecord]) -> Activity:
    """Return calls and kernels, a pair for each operation, in the order of the calls."""
    records.sort(key=lambda record: record.call_us or 0)
    names = sorted({record.operation for record in records})
    code = np.array([names.index(record.operation) for record in records], np.uint32)
    call, start, duration = (
        np.array([round(value * 1000) for value in values], np.int64)
        for values in (
            [record.call_us or 0 for record in records],
            [record.start_us or 0 for record in records],
            [record.duration_us for record in records],
        )
    )
    communicator = np.array([record.communicator for record in records], np.uint64)
    kernels = {name: np.zeros(len(records), values.dtype) for name, values in empty(Topic.KERNEL).columns.items()}
    kernels |= {
        "name": code,
        "start_ns": np.maximum(start, call),
        "duration_ns": duration.astype(np.uint64),
        "stream": np.unique(communicator, return_inverse=True)[1].astype(np.uint32),
        "correlation": np.arange(1, len(records) + 1, dtype=np.uint32),
    }
    calls = CollectiveCalls(
        launch_ns=call,
        start_ns=kernels["start_ns"],
        operation=nccl.range_operations([f"nccl{name}" for name in names])[code],
        communicator=communicator,
        bytes=np.array([record.bytes for record in records], np.uint64),
        peer=np.array([record.peer for record in records], np.int32),
    )
    markers, payloads = call_markers(calls, 1)
    named = Table(kernels, {"names": [f"ncclDevKernel_{name}" for name in names]})
    return Activity(kernels=named, markers=markers, payloads=payloads)
