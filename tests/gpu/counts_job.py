"""One rank of a process of one tier: counts_job.py TIER. Driven by counts.py.

Below `drumline run` or, with tier `none`, without drumline. RANK, WORLD_SIZE and STORE_FILE are set. Reads a command a
line and prints JSON, one object a line: a workload and the number of its steps (`ddp 40`); `pairs WORKLOAD COUNT`
switches the counting of this process on and off from pair to pair; `check WORKLOAD STEPS` counts a run while records
count it too (workload `calls`: each call that launches or copies); `profiler` records a step by PyTorch's profiler;
`fork` counts beside a child; `state`; `totals`: all counts so far.
Tier `counts, no kept kind`: without the records of peer copies that otherwise stay on.
"""

import ctypes
import gc
import json
import os
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from launch_bound import ddp, decode, pin_threads, timed

tier, rank = sys.argv[1], int(os.environ["RANK"])
#: Replays of a step.
REPLAYS = 20


def reply(**values: object) -> None:
    print(json.dumps(values), flush=True)


def attachment():
    from drumline.producers.collector import attach

    return attach.attached()


def waited(is_so, within_s: float = 20.0) -> bool:
    until = time.monotonic() + within_s
    while not is_so() and time.monotonic() < until:
        time.sleep(0.01)
    return bool(is_so())


def replays():
    """Return a step of replays of a graph: a decoded token, some 300 nodes."""
    token = decode()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        token()
    graph = torch.cuda.CUDAGraph()
    synchronize, torch.cuda.synchronize = torch.cuda.synchronize, lambda: None
    try:
        with torch.cuda.graph(graph):
            token()
    finally:
        torch.cuda.synchronize = synchronize

    def step() -> None:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()

    return step


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
    from drumline.producers.ipc.policy import COUNTS, Policy

    follow = LaunchCounter.follow
    LaunchCounter.follow = lambda self, policy, is_recording: follow(self, Policy(COUNTS), False)
    policy = Path(os.environ["DRUMLINE_SPOOL__ROOT"]) / "policy"
    if rank == 0:
        policy.write_text("always\n")
    is_on = waited(lambda: attachment().collector.state == "on")
    torch.cuda.synchronize()
    time.sleep(1.0)
    before, begin = totals(), time.time_ns()
    run()
    torch.cuda.synchronize()
    end, after = time.time_ns(), totals()
    time.sleep(2.5)  # the other rank may still run
    if rank == 0:
        policy.unlink()
    waited(lambda: attachment().collector.state == "counting")
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
    create = (ctypes.byref(other), None, 0, rank) if hasattr(cuda, "cuCtxCreate_v4") else (ctypes.byref(other), 0, rank)
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
        torch.ones(1 << 12, device=f"cuda:{1 - rank}").copy_(device[: 1 << 12])
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


def profiled(step) -> dict[str, object]:
    """Record a step by PyTorch's profiler: does it see kernels, and does counting come back?"""
    from torch.profiler import ProfilerActivity, profile

    collecting = attachment().collector
    before = collecting.state
    with profile(activities=[ProfilerActivity.CUDA]) as run:
        step()
    kernels = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in run.events())
    again = waited(lambda: collecting.state == "counting", 15)
    count, new = totals(), {}
    if again:
        step()
        new = difference(totals(), count)
    return {"before": before, "kernels": kernels, "counts again": again, "launches": sum(of[0] for of in new.values())}


def switched(on: bool) -> None:
    """Begin or end the counting of this process now; with it CUPTI's subscriber comes and goes."""
    from drumline.producers.ipc.buffer_pool import Header
    from drumline.producers.ipc.policy import COUNTS, LIGHT, Policy

    collecting, mode = attachment().collector, COUNTS if on else LIGHT
    with collecting._lock:
        attachment().pool.header[Header.MODE] = mode
        collecting._counter.follow(Policy(mode), False)
        assert collecting._counter.begun == on


def pairs(step, count: int) -> list[list[float]]:
    """Return the median of three steps with counting and without, and their CPU times, for each of some pairs; us."""
    result = []
    gc.collect()
    gc.disable()
    for number in range(count):
        sides = {}
        for on in (True, False) if number % 2 else (False, True):
            switched(on)
            step()
            times, cpu = [], time.process_time()
            for _ in range(3):
                begin = time.perf_counter()
                step()
                times.append(1e6 * (time.perf_counter() - begin))
            sides[on] = [median(times), 1e6 * (time.process_time() - cpu) / 3]
        result.append([*sides[True], *sides[False]])
    gc.enable()
    switched(True)
    return result


def forked(step) -> dict[str, object]:
    before = totals()
    child = os.fork()
    if not child:
        os._exit(0 if attachment() is None else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    step()
    return {"child": code, "launches": sum(of[0] for of in difference(totals(), before).values())}


def main() -> None:
    """Prepare the workloads, then answer commands until the end of the input."""
    torch.set_num_threads(1)
    if tier == "counts, no kept kind":
        from drumline.producers.collector import recorder

        recorder.ActivityRecorder.keep = lambda self: None
    torch.cuda.set_device(rank)
    torch.zeros(1, device="cuda")
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl", f"file://{os.environ['STORE_FILE']}", rank=rank, world_size=world)
    steps = {"ddp": ddp(rank), "decode": decode(), "replays": replays()}
    dist.barrier()
    for step in steps.values():
        timed(step, 10)
    pin_threads(sorted(os.sched_getaffinity(0)))
    state = attachment().collector.state if tier != "none" and attachment() else ""
    reply(ready=tier, state=state)
    for line in sys.stdin:
        name, *rest = line.split()
        if name == "pairs":
            reply(pairs=pairs(steps[rest[0]], int(rest[1])))
        elif name == "check":
            step = calls if rest[0] == "calls" else steps[rest[0]]
            if rest[0] == "ddp":
                dist.barrier()
            reply(**check(lambda step=step, count=int(rest[1]): [step() for _ in range(count)]))
        elif name == "profiler":
            reply(**profiled(steps["decode"]))
        elif name == "fork":
            reply(**forked(steps["decode"]))
        elif name == "state":
            reply(state=attachment().collector.state if attachment() else "")
        elif name == "totals":
            sums = [sum(of[at] for of in totals().values()) for at in range(3)]
            reply(pid=os.getpid(), launches=sums[0], replayed=sums[1], bytes=sums[2])
        else:
            if name == "ddp":
                dist.barrier()
            reply(**timed(steps[name], int(rest[0])))


if __name__ == "__main__":
    main()
