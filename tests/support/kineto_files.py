"""Recorded jobs as the JSON that PyTorch's profiler exports, one file a rank."""

from __future__ import annotations

import json

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.kernel_names import hash_text
from drumline.producers.derive.rows import derive

#: Times in a file count from here; ns since the epoch, as baseTimeNanoseconds.
BASE_NS = 1_700_000_000_000_000_000
#: PyTorch's name of an operation.
NAMES = {
    "AllReduce": "allreduce",
    "AllGather": "_allgather_base",
    "ReduceScatter": "_reduce_scatter_base",
    "AllToAll": "all_to_all",
    "Broadcast": "broadcast",
    "Send": "send",
    "Recv": "recv",
}
_COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
_MEMORIES = {1: "Pageable", 2: "Pinned", 3: "Device"}


def trace_file(events, rank=0, world_size=1, **more):
    """Text of one file."""
    info = {"rank": rank, "world_size": world_size, "backend": "nccl"}
    return json.dumps(
        {
            "schemaVersion": 1,
            "deviceProperties": [{"id": rank, "name": "NVIDIA H200"}],
            "distributedInfo": info,
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": events,
            "traceName": "t.json",
            **more,
        }
    )


def event(cat, name, start_ns, duration_ns, tid=1, pid=1, **args):
    """One event; times are ns since BASE_NS."""
    times = {"ts": start_ns / 1000, "dur": duration_ns / 1000}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args}


def kernel(name, start_ns, duration_ns, correlation, stream=7, **args):
    """A kernel and the call that launched it 10 us earlier."""
    fields = {"correlation": correlation, "device": 0, "stream": stream, "grid": [4, 1, 1], "block": [128, 1, 1]}
    return [
        event("cuda_runtime", "cudaLaunchKernel", start_ns - 10_000, 1_000, correlation=correlation),
        event("kernel", name, start_ns, duration_ns, tid=stream, **fields, **args),
    ]


def small_job(steps=3, ranks=2, late_rank=-1, late_ns=0, first_step=10, distance=1):
    """Events of each rank: steps of 1 ms with one kernel and an all-reduce that all ranks leave together."""
    files = []
    for rank in range(ranks):
        events, at = [], 1_000_000
        for step in range(steps):
            late = late_ns if rank == late_rank else 0
            begin = at + step * distance * (1_000_000 + late_ns)
            number = first_step + step * distance
            events += [event("user_annotation", f"ProfilerStep#{number}", begin, 990_000 + late_ns)]
            events += kernel("gemm", begin + 50_000 + late, 400_000, 10 * step + 1)
            events += kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                begin + 500_000 + late,
                300_000 + late_ns - late,
                10 * step + 2,
                stream=20,
                **{
                    "Collective name": "allreduce",
                    "In msg nelems": 1000,
                    "dtype": "Float",
                    "Process Group Name": "0",
                    "Process Group Ranks": str(list(range(ranks))),
                },
            )
        files.append(events)
    return files


def write_job(folder, files, **more):
    """Write a file a rank and return their paths."""
    paths = []
    for rank, events in enumerate(files):
        path = folder / f"trace-rank{rank}.json"
        path.write_text(trace_file(events, rank, len(files), **more))
        paths.append(path)
    return paths


def export_recording(trace, since, folder):
    """Write the ranks of a recorded trace as files of PyTorch's profiler; `since`: see measured_from()."""
    paths = []
    for info, activity, since_ns in zip(trace.ranks, trace.activities, since, strict=True):
        derived = derive(activity, since_ns=since_ns)
        path = folder / f"{info.host}_{info.pid}.{1_000 + info.rank}.pt.trace.json"
        path.write_text(trace_file(list(_events(activity, derived)), info.rank, len(trace.ranks)))
        paths.append(path)
    return paths


def _events(activity, derived):
    kernels = activity.kernels
    names, calls = kernels.dictionaries["names"], dict(zip(*_pairs(derived), strict=True))
    stated = _stated(derived)
    is_nccl = nccl.is_kernel(names)
    for step, start, length in _rows(derived.steps, "step", "start_ns", "duration_ns"):
        yield event("user_annotation", f"ProfilerStep#{step}", start - BASE_NS, length)
    columns = ("name", "start_ns", "duration_ns", "correlation", "stream", "grid_x", "grid_y", "grid_z")
    for name, start, length, correlation, stream, *grid in _rows(kernels, *columns):
        args = {"correlation": correlation, "stream": stream, "device": 0, "grid": grid, "block": [1, 1, 1]}
        if is_nccl[name]:
            args |= stated.get(start, {})
            launch = calls.get(correlation, start - 1_000)
            yield event("cuda_runtime", "cudaLaunchKernel", launch - BASE_NS, 1_000, correlation=correlation)
        yield event("kernel", names[name], start - BASE_NS, length, tid=stream, **args)
    columns = ("kind", "src_kind", "dst_kind", "start_ns", "duration_ns", "correlation", "stream", "bytes")
    for kind, source, target, start, length, correlation, stream, size in _rows(activity.copies, *columns):
        args = {"correlation": correlation, "stream": stream, "bytes": size, "device": 0}
        copied = f"({_MEMORIES.get(source, 'Unknown')} -> {_MEMORIES.get(target, 'Unknown')})"
        cat, name = "gpu_memset", "Memset (Device)"
        if kind in _COPIES:
            cat, name = "gpu_memcpy", f"Memcpy {_COPIES[kind]} {copied}"
        yield event(cat, name, start - BASE_NS, length, tid=stream, **args)


def _pairs(derived):
    matches = derived.matches
    return matches.correlation.tolist(), matches.call_ns.tolist()


def _stated(derived):
    """Start of each matched NCCL kernel -> the arguments that PyTorch gives it."""
    table = derived.collectives
    operations = table.dictionaries["operations"]
    stated = {}
    for operation, communicator, size, start in _rows(table, "operation", "communicator", "bytes", "start_ns"):
        name = operations[operation]
        stated[start] = {
            "Collective name": NAMES.get(name, "coalesced"),
            "In msg nelems": size,
            "dtype": "Byte",
            "Process Group Name": hash_text(communicator),
        }
    return stated


def _rows(table, *names):
    assert len(end_ns(table)) == table.rows
    return zip(*(np.asarray(table[name]).tolist() for name in names), strict=True)
