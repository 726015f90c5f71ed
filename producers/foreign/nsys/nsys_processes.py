"""The processes of an export of Nsight Systems: one for each process that ran kernels or called NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from drumline.producers.activity.activity import Activity
from drumline.producers.foreign.nsys.activity_tables import KERNELS, THREAD_BITS, copies, kernels, markers
from drumline.producers.foreign.nsys.database import NsysDatabase
from drumline.producers.foreign.nsys.launched_calls import launch_times, with_calls
from drumline.producers.foreign.nsys.payloads import payloads
from drumline.producers.foreign.process_trace import ProcessTrace
from drumline.producers.foreign.recognise import Format
from drumline.producers.replay.parquet import BadTrace

#: Samples that an export may have and that no verdict uses: what they are -> tables.
UNUSED = {
    "network cards": ("NET_NIC_METRIC", "NET_IB_SWITCH_METRIC"),
    "CPUs": ("COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS", "SCHED_EVENTS"),
    "GPU metrics": ("GPU_METRICS",),
}


def read_nsys(path: Path) -> Iterator[ProcessTrace]:
    """Yield the processes of an export by device and process id, each read when it is asked for. Raises BadTrace.

    A process has a rank where the export has NCCL's payloads (`--include-blobs true`); otherwise the caller numbers
    them in this order.
    """
    with NsysDatabase(path) as database:
        if not database.has_columns(KERNELS, "start", "end", "globalPid", "demangledName"):
            raise BadTrace(f"{path}: no kernels of a process: record with --trace=cuda,nvtx, and export again")
        epoch_ns = _epoch_ns(database)
        query = (
            f"SELECT globalPid, min(deviceId), count(DISTINCT deviceId) FROM {KERNELS} GROUP BY globalPid ORDER BY 2, 1"
        )
        rows, unused = database.rows(query), _unused(database)
        for process, device, devices in rows:
            trace = _process(database, int(process), int(device), int(devices), epoch_ns)
            yield replace(trace, shares_file=len(rows) > 1, notes=(*trace.notes, *unused))
            unused = []


def _unused(database: NsysDatabase) -> list[str]:
    """Return a sentence on the samples that the export has and that are not used; [] without any."""
    present = {
        title: [name for name in names if name in database.tables and database.rows(f"SELECT 1 FROM {name} LIMIT 1")]
        for title, names in UNUSED.items()
    }
    listed = [f"{title} ({', '.join(names)})" for title, names in present.items() if names]
    return [f"samples are there and are not used: of {', '.join(listed)}"] if listed else []


def _process(database: NsysDatabase, process: int, device: int, devices: int, epoch_ns: int) -> ProcessTrace:
    ranges, rows = markers(database, process, epoch_ns)
    calls, place = payloads(database, process, rows)
    kernel = kernels(database, process, epoch_ns)
    ranges, calls = with_calls(ranges, calls, kernel, launch_times(database, process, epoch_ns, kernel))
    activity = Activity(kernels=kernel, copies=copies(database, process, epoch_ns), markers=ranges, payloads=calls)
    notes = [f"process {_pid(process)} used {devices} GPUs, which count as one"] if devices > 1 else []
    rank, world_size = place or (-1, 0)
    return ProcessTrace(
        path=database.path,
        format=Format.NSYS,
        rank=rank,
        world_size=world_size,
        pid=_pid(process),
        host=_host(database),
        gpu_index=device,
        activity=activity,
        notes=tuple(notes),
    )


def _pid(process: int) -> int:
    return process >> THREAD_BITS & ((1 << THREAD_BITS) - 1)


def _epoch_ns(database: NsysDatabase) -> int:
    """Return the time of the export's zero in ns since the epoch; 0 where it lacks."""
    table = "TARGET_INFO_SESSION_START_TIME"
    rows = database.rows(f"SELECT utcEpochNs FROM {table} LIMIT 1") if database.has_columns(table, "utcEpochNs") else []
    return int(rows[0][0] or 0) if rows else 0


def _host(database: NsysDatabase) -> str:
    """Return the name of the host that was recorded; the file's name where it lacks, so that hosts stay apart."""
    table = "TARGET_INFO_SYSTEM_ENV"
    rows = (
        database.rows(f"SELECT value FROM {table} WHERE name = 'Hostname' LIMIT 1")
        if database.has_columns(table, "name", "value")
        else []
    )
    return str(rows[0][0]) if rows and rows[0][0] else database.path.stem
