"""Count what a rank of counts_job.py launches beside what CUPTI records, and make each call that counts."""

import ctypes
import json
import os
import time
from itertools import count
from pathlib import Path

import torch

RANK = int(os.environ["LOCAL_RANK"])
_numbers = count(1_000_000)


def attachment():
    from drumline.producers.collector import attach

    return attach.attached()


def state() -> str:
    return attachment().collector.state if attachment() else ""


def waited(is_so, within_s: float = 20.0) -> bool:
    """Wait for something; a mark of the job is what begins a window."""
    import drumline

    until = time.monotonic() + within_s
    while not is_so() and time.monotonic() < until:
        drumline.step(next(_numbers))
        time.sleep(0.01)
    return bool(is_so())


def wanted(policy: str) -> None:
    """Write the host's policy file, or remove it: both ranks may."""
    file = Path(os.environ["DRUMLINE_SPOOL__ROOT"]) / "policy"
    file.write_text(f"{policy}\n") if policy else file.unlink(missing_ok=True)


def totals() -> dict[str, list[int]]:
    """Return what the table of this process holds: kernel or kind of copy -> launches, of them replays, bytes."""
    from drumline.producers.decoder.launch_counts import LaunchCounts

    reader = LaunchCounts(attachment().pool)
    entries, now = reader._read()
    result: dict[str, list[int]] = {}
    for i in (now.launches > 0).nonzero()[0].tolist():
        entry, kind = entries[i], int(entries[i]["kind"])
        text = reader._text(i if i < 3 else int(entry["name"]) + 3, kind)
        shape = [*entry["grid"].tolist(), *entry["block"].tolist()] if kind == 128 else kind
        sums = result.setdefault(json.dumps([text, shape]), [0, 0, 0])
        for at, values in enumerate(now):
            sums[at] += int(values[i])
    return result


def difference(after: dict[str, list[int]], before: dict[str, list[int]]) -> dict[str, list[int]]:
    new = {key: [a - b for a, b in zip(of, before.get(key, [0, 0, 0]), strict=True)] for key, of in after.items()}
    return {key: of for key, of in new.items() if any(of)}


def check(run) -> dict[str, object]:
    """Count a run while CUPTI records it, and return the counts, with the time in which the records must start."""
    from drumline.producers.collector.counter import LaunchCounter
    from drumline.producers.ipc.policy import AUTO, Policy

    follow = LaunchCounter.follow
    LaunchCounter.follow = lambda self, policy, is_recording: follow(self, Policy(AUTO), False)
    wanted("always")
    is_on = waited(lambda: state() == "on")
    torch.cuda.synchronize()
    time.sleep(1.0)
    before, begin = totals(), time.time_ns()
    run()
    torch.cuda.synchronize()
    end, after = time.time_ns(), totals()
    time.sleep(2.5)  # the other rank may still run
    wanted("")
    waited(lambda: state() == "counting")
    LaunchCounter.follow = follow
    return {"on": is_on, "begin_ns": begin, "end_ns": end, "pid": os.getpid(), "counts": difference(after, before)}


PTX = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry NAME(.param .u64 a) { ret; }
"""


def module(cuda: ctypes.CDLL, name: bytes) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    handle, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(handle), PTX.replace(b"NAME", name)) == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), handle, name) == 0
    return handle, function


def calls() -> None:
    """Launch and copy in each way, in numbers that differ."""
    cuda = ctypes.CDLL("libcuda.so.1")
    value = ctypes.c_uint64(0)
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def launch(function: ctypes.c_void_p, grid: int = 1, call: str = "cuLaunchKernel") -> None:
        extra = [] if "Cooperative" in call else [None]
        shape = [ctypes.c_uint(n) for n in (grid, 1, 1, 32, 1, 1, 0)]
        assert getattr(cuda, call)(function, *shape, stream, arguments, *extra) == 0

    def launch_ex(function: ctypes.c_void_p) -> None:
        config = (ctypes.c_uint64 * 7)(1 | 1 << 32, 1 | 32 << 32, 1 | 1 << 32, 0, stream.value or 0, 0, 0)
        assert cuda.cuLaunchKernelEx(config, function, arguments, None) == 0

    _, plain = module(cuda, b"zoo_plain")
    for grid in (1, 2, 3):
        for _ in range(grid):
            launch(plain, grid)
    _, cooperative = module(cuda, b"zoo_cooperative")
    for _ in range(4):
        launch(cooperative, call="cuLaunchCooperativeKernel")
    _, extended = module(cuda, b"zoo_extended")
    for _ in range(5):
        launch_ex(extended)
    for number in range(6):  # the handle of one may be that of the next
        handle, function = module(cuda, b"zoo_reloaded_%d" % number)
        for _ in range(number + 1):
            launch(function)
        torch.cuda.synchronize()
        assert cuda.cuModuleUnload(handle) == 0
    previous, other = ctypes.c_void_p(), ctypes.c_void_p()
    cuda.cuCtxGetCurrent(ctypes.byref(previous))
    create = (ctypes.byref(other), None, 0, RANK) if hasattr(cuda, "cuCtxCreate_v4") else (ctypes.byref(other), 0, RANK)
    if (cuda.cuCtxCreate_v4 if len(create) == 4 else cuda.cuCtxCreate_v2)(*create) == 0:  # a second context
        _, second = module(cuda, b"zoo_second_context")
        for _ in range(7):
            shape = [ctypes.c_uint(n) for n in (1, 1, 1, 32, 1, 1, 0)]
            assert cuda.cuLaunchKernel(second, *shape, None, arguments, None) == 0
        cuda.cuCtxSynchronize()
        cuda.cuCtxSetCurrent(previous)
    pinned, device = torch.zeros(1 << 16, pin_memory=True), torch.zeros(1 << 16, device="cuda")
    pageable = torch.zeros(1 << 16)
    for _ in range(3):
        device.copy_(pinned, non_blocking=True)
    for _ in range(2):
        pageable.copy_(device)
    device.clone()
    device[: 1 << 10].copy_(pageable[: 1 << 10])
    torch.zeros(64, 64, device="cuda")[:, :32].copy_(torch.ones(64, 32, device="cuda"))
    cuda.cuMemsetD32Async(ctypes.c_uint64(device.data_ptr()), 0, ctypes.c_size_t(1 << 10), stream)
    if torch.cuda.device_count() > 1:
        torch.ones(1 << 12, device=f"cuda:{1 - RANK}").copy_(device[: 1 << 12])
    first, second_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    x = torch.ones(1 << 10, device="cuda")
    with torch.cuda.graph(first):
        x.mul_(1.0)
        x.add_(0.0)
        x.add_(0.0)
    for _ in range(11):
        first.replay()
    with torch.cuda.graph(second_graph):
        x.sub_(0.0)
        device[: 1 << 10].copy_(pinned[: 1 << 10], non_blocking=True)
        x.zero_()
    for _ in range(13):
        second_graph.replay()
    torch.cuda.synchronize()
    del first
    third = torch.cuda.CUDAGraph()
    with torch.cuda.graph(third):
        x.div_(1.0)
    for _ in range(17):
        third.replay()
    torch.cuda.synchronize()
