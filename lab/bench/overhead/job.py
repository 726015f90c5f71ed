"""Runs one process of `drumline bench overhead`: the same steps under one mode of observation, or none.

usage: python -m drumline.lab.bench.overhead.job MODE SECONDS WORKLOAD... (prints one JSON object)
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import count
from typing import Any

from drumline.lab.bench.overhead.paired import interleaved_blocks, recycled
from drumline.producers.collector import attach, cupti
from drumline.producers.collector.attachment import Attachment
from drumline.producers.collector.recorder import KINDS
from drumline.producers.ipc.buffer_pool import Header, new_pool

#: Steps before measuring; the allocator and cuBLAS settle.
WARM_UP = 5
#: Period in which the probe asks for the GIL, and for how long; s.
PROBE_S, PROBED_S = 0.001, 1.0


def gpu_bound(torch: Any, wrap: Callable[[Any], Any] = lambda model: model, count: int = 14) -> Callable[[], None]:
    """Return a step of large matrix products, about 60 ms on an H200: the GPU is the limit.

    `wrap`: makes the model one of several ranks. `count`: of products.
    """
    layers = [torch.nn.Linear(8192, 8192, bias=False, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    model = wrap(torch.nn.Sequential(*layers))
    data = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)

    def step() -> None:
        model(data).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def launch_bound(torch: Any) -> Callable[[], None]:
    """Return a step of a small transformer, about 900 launches: the host is the limit."""
    block = torch.nn.TransformerEncoderLayer(128, 4, 256, 0.0, batch_first=True, device="cuda")
    model = torch.nn.TransformerEncoder(block, 12, enable_nested_tensor=False)
    data = torch.randn(4, 32, 128, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> None:
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tiny_kernels(torch: Any) -> Callable[[], None]:
    """Return a step of 2,000 kernels of a few microseconds, launched in a plain loop."""
    data, out = torch.randn(256, 256, device="cuda"), torch.empty(256, 256, device="cuda")

    def step() -> None:
        for _ in range(2000):
            torch.erfinv(data, out=out)

    return step


def graph_replay(torch: Any) -> Callable[[], None]:
    """Return a step that replays a CUDA graph of 400 small kernels five times."""
    data, out = torch.randn(256, 256, device="cuda"), torch.empty(256, 256, device="cuda")
    torch.erfinv(data, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(400):
            torch.erfinv(data, out=out)

    def step() -> None:
        for _ in range(5):
            graph.replay()

    return step


WORKLOADS = {f.__name__: f for f in (gpu_bound, launch_bound, tiny_kernels, graph_replay)}


@contextmanager
def nothing(torch: Any) -> Iterator[None]:
    """Attach nothing."""
    yield


@contextmanager
def cupti_only(torch: Any) -> Iterator[None]:
    """Record with CUPTI and the same kinds of activity; its buffers are returned unread."""
    library, pool, callbacks = cupti.load(attach.prepare()), new_pool(), cupti.Callbacks()
    address = ctypes.addressof(ctypes.c_char.from_buffer(pool.memory))
    callbacks.open(address, library.address("cuptiActivityGetNumDroppedRecords"))
    library.cuptiActivityRegisterCallbacks(callbacks.request, callbacks.complete)
    for kind in KINDS:
        assert library.cuptiActivityEnable(kind) == 0
    with recycled(pool):
        yield
        for kind in reversed(KINDS):
            library.cuptiActivityDisable(kind)
        library.cuptiActivityFlushAll(1)
    callbacks.close()


@contextmanager
def cupti_off(torch: Any) -> Iterator[None]:
    """Record once with CUPTI, then switch it off: the state of a process after a deep window."""
    with cupti_only(torch):
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    yield


@contextmanager
def record_callback(torch: Any) -> Iterator[None]:
    """Record as the samples of cupti-python do: a Python object per record."""
    binding = import_module("cupti.cupti")
    seen = [0]

    def requested() -> tuple[int, int]:
        return 8 << 20, 0

    def completed(records: list[Any]) -> None:
        for record in records:
            seen[0] += record.end - record.start > 0

    binding.activity_register_callbacks(requested, completed)
    kinds = (binding.ActivityKind.CONCURRENT_KERNEL, binding.ActivityKind.MEMCPY, binding.ActivityKind.MEMSET)
    for kind in kinds:
        binding.activity_enable(kind)
    yield
    for kind in kinds:
        binding.activity_disable(kind)
    binding.activity_flush_all(1)


@contextmanager
def torch_profiler(torch: Any) -> Iterator[None]:
    """Record with PyTorch's profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities):
        yield


#: Mode -> context of a workload; `drumline run` attaches drumline itself.
MODES = {
    "plain": nothing,
    "light": nothing,
    "auto": nothing,
    "cupti": cupti_only,
    "cupti_off": cupti_off,
    "drumline": nothing,
    "paired": nothing,
    "record_callback": record_callback,
    "torch_profiler": torch_profiler,
}


def gil_delays(step: Callable[[], None], torch: Any) -> list[float]:
    """Return by how much a thread that asks for the GIL every millisecond gets it too late, while steps run; ms.

    Measured after the step times, which such a thread changes.
    """
    late: list[float] = []
    stop = threading.Event()

    def want() -> None:
        while not stop.is_set():
            at = time.perf_counter()
            time.sleep(PROBE_S)
            late.append(max(0.0, time.perf_counter() - at - PROBE_S) * 1e3)

    thread = threading.Thread(target=want, daemon=True)
    thread.start()
    begin = time.perf_counter()
    while time.perf_counter() - begin < PROBED_S:
        step()
        torch.cuda.synchronize()
    stop.set()
    thread.join()
    return late


def forget_peak() -> None:
    """Reset the peak of memory (proc(5), clear_refs); memory still in use stays in it."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_mb(pid: int) -> float:
    """Return the peak memory of a process; MB of 1,048,576 bytes."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def main() -> None:
    """Run the workloads of the command line under one mode and print the results."""
    mode, seconds, names = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    torch = import_module("torch")
    torch.cuda.init()
    expected = mode in ("drumline", "paired")
    assert (attach.attached() is not None) == expected, attach.status()
    began = time.monotonic()
    workloads = {name: _run_workload(torch, mode, name, seconds) for name in names}
    result: dict[str, Any] = {
        "seconds": time.monotonic() - began,
        "workloads": workloads,
        "versions": {"PyTorch": torch.__version__, "CUPTI": str(cupti.load(attach.prepare()).version())},
    }
    attachment = attach.attached()
    if attachment is not None:
        result |= _cost(attachment)
    print(json.dumps(result))


def _run_workload(torch: Any, mode: str, name: str, seconds: float) -> dict[str, Any]:
    forget_peak()
    step = WORKLOADS[name](torch)
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    number = count()

    def timed() -> float:
        at = time.perf_counter()
        torch.cuda.nvtx.range_push(f"step {next(number)}")
        step()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        return (time.perf_counter() - at) * 1e3

    took: list[float] = []
    attachment = attach.attached()
    with MODES[mode](torch):
        cpu, begin = time.process_time(), time.perf_counter()
        if mode == "paired" and attachment is not None:
            return interleaved_blocks(attachment, timed, seconds) | {"peak_mb": peak_mb(os.getpid())}
        while time.perf_counter() - begin < seconds or len(took) < 20:
            took.append(timed())
        wall = time.perf_counter() - begin
        cpu = time.process_time() - cpu
        delays = gil_delays(step, torch)
    return {"ms": took, "cpu": cpu / wall, "gil_ms": delays, "peak_mb": peak_mb(os.getpid())}


def _cost(attachment: Attachment) -> dict[str, Any]:
    """Return what drumline used in this process and in its decoder, from the header of the buffer pool."""
    header = attachment.pool.header
    with open(f"/proc/{attachment.decoder}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return {
        "thread_s": header[Header.THREAD_NS] / 1e9,
        "locked_s": max(0, header[Header.THREAD_NS] - header[Header.UNLOCKED_NS]) / 1e9,
        "callback_s": header[Header.CALLBACK_NS] / 1e9,
        "callback_max_us": header[Header.CALLBACK_MAX_NS] / 1e3,
        "refused": header[Header.DENIED],
        "dropped": header[Header.CUPTI_DROPPED],
        "decoder_cpu_s": (int(fields[11]) + int(fields[12])) / 100,
        "decoder_mb": peak_mb(attachment.decoder),
    }


if __name__ == "__main__":
    main()
