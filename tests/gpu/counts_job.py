"""One rank of a process of one tier: counts_job.py TIER WORKLOADS. Driven by counts.py.

Below `drumline run` or, with tier `none`, without drumline. RANK, LOCAL_RANK, WORLD_SIZE and STORE_FILE are set.
WORKLOADS: of ddp, decode, replays (of a CUDA graph) and adds (small kernels), by comma. PROFILED: 1 = PyTorch's
profiler runs before CUDA is used. Reads a command a line and prints JSON, one object a line:

    WORKLOAD STEPS        their time
    pairs WORKLOAD COUNT  counting of this process on and off in turn; for each pair the times of three steps each. Off:
                          CUPTI has gone, but where a CUDA graph is known that would break; there it has no subscriber
    rings WORKLOAD COUNT  the same of the recording of NCCL's operations
    cores COUNT           gives all threads, and the decoder, the first of this rank's cores
    check WORKLOAD STEPS  counts a run while records count it too (workload `calls`: each call that launches or copies)
    profile; window       by PyTorch's profiler; by drumline: who has which kernels, and what is on then
    both                  the profiler in a window
    fork; state; totals   a child beside it; what is on; all counts so far
"""

import contextlib
import gc
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from counts_calls import RANK, attachment, calls, check, difference, state, totals, waited, wanted
from launch_bound import ddp, decode, timed

from drumline.lab.bench.overhead.ddp_job import pin_threads

tier, workloads = sys.argv[1], sys.argv[2].split(",")
CORES = sorted(os.sched_getaffinity(0))
#: Replays of a step, and small kernels of one; steps of a profile or window.
REPLAYS, ADDS, STEPS = 20, 500, 5


def reply(**values: object) -> None:
    print(json.dumps(values), flush=True)


def replays():
    """Return a step of replays of a graph: a decoded token, some 200 nodes."""
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


def adds():
    """Return a step of small kernels, which the host launches one after the other."""
    numbers = torch.zeros(32, device="cuda")

    def step() -> None:
        for _ in range(ADDS):
            numbers.add_(1)
        torch.cuda.synchronize()

    return step


def profiler():
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CUDA])


def kernels(run) -> int:
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in run.events())


def ran(step) -> dict[str, object]:
    """Run some steps, and return what was counted of them."""
    before, begin = totals(), time.time_ns()
    for _ in range(STEPS):
        step()
    new = difference(totals(), before)
    return {"begin_ns": begin, "end_ns": time.time_ns(), "counted": sum(of[0] for of in new.values())}


def profiled(step) -> dict[str, object]:
    """Profile some steps: kernels that the profiler has, and what drumline does before and behind it."""
    before = state()
    with profiler() as run:
        inside = state()
        for _ in range(STEPS):
            step()
    again = waited(lambda: state() == "counting", 4)
    return {"states": [before, inside, state()], "kernels": kernels(run), "counts again": again, "after": ran(step)}


def window(step, profile: bool = False) -> dict[str, object]:
    """Run some steps in a deep window, `profile`: and then some under the profiler, and some after it."""
    wanted("always")
    answer: dict[str, object] = {"pid": os.getpid(), "on": waited(lambda: state() == "on", 8)}
    time.sleep(0.2)
    answer["window"] = ran(step)
    if profile:
        answer["profile"] = profiled(step)
        answer["on again"] = waited(lambda: state() == "on", 8)
        answer["window again"] = ran(step)
    wanted("")
    waited(lambda: state() in ("counting", "off"), 8)
    waited(lambda: attachment().collector._recorder.rests and state() == "counting", 4)
    return {**answer, "state": state(), "gone": attachment().collector._recorder.rests, "after": ran(step)}


def switched(on: bool) -> None:
    """Begin or end the counting of this process now; with it CUPTI's subscriber comes and goes."""
    from drumline.producers.ipc.buffer_pool import Header
    from drumline.producers.ipc.policy import AUTO, LIGHT, Policy

    collecting, mode = attachment().collector, AUTO if on else LIGHT
    with collecting._lock:
        attachment().pool.header[Header.MODE] = mode
        collecting._counter.follow(Policy(mode), False)
        assert collecting._counter.begun == on, (on, attachment().collector.state)
        if not on and "replays" not in workloads:
            assert collecting._counter._cupti.cuptiFinalize() == 0


def recorded(on: bool) -> None:
    """Begin or end the recording of NCCL's operations, all of which are measured."""
    from drumline.producers.nccl_profiler import library

    library.time_all(True)
    library.record(on)


def pairs(step, count: int, switched) -> list[list[object]]:
    """Return times of three steps with something on and off, and their CPU times, for each of some pairs; us."""
    result = []
    if switched is not recorded:
        attachment().collector._counter._callbacks.forget = lambda: None  # graphs stay known: they are the same
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
                times.append(round(1e6 * (time.perf_counter() - begin), 1))
            sides[on] = [times, 1e6 * (time.process_time() - cpu) / 3]
        result.append([*sides[True], *sides[False]])
    gc.enable()
    switched(True)
    return result


def placed(count: int) -> None:
    """Give all threads, and the decoder, the first cores."""
    tasks = [int(path.name) for path in Path("/proc/self/task").iterdir()]
    if tier != "none" and (attached := attachment()):
        tasks += [int(path.name) for path in Path(f"/proc/{attached.decoder}/task").iterdir()]
    for task in tasks:
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(task, set(CORES[:count]))


def forked(step) -> dict[str, object]:
    child = os.fork()
    if not child:
        os._exit(0 if attachment() is None else 1)
    return {"child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), **ran(step)}


def untimed() -> int:
    """Return how many steps the plugin has not measured."""
    from drumline.lab.bench.overhead.ddp_job import counts

    return counts()[1]


def main() -> None:
    """Prepare the workloads, then answer commands until the end of the input."""
    torch.set_num_threads(1)
    early = profiler() if os.environ.get("PROFILED") else None
    if early:
        early.__enter__()
    torch.cuda.set_device(RANK)
    torch.zeros(1, device="cuda")
    store, world = f"file://{os.environ['STORE_FILE']}", int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl", store, rank=int(os.environ["RANK"]), world_size=world)
    make = {"ddp": lambda: ddp(RANK), "decode": decode, "replays": replays, "adds": adds}
    steps = {name: make[name]() for name in workloads}
    dist.barrier()
    for step in steps.values():
        timed(step, 10)
    if early:
        early.__exit__(None, None, None)
    pin_threads(CORES)
    seen = kernels(early) if early else 0
    reply(ready=tier, state=state() if tier != "none" else "", profiled=seen)
    token = steps.get("decode")
    for line in sys.stdin:
        name, *rest = line.split()
        if name in ("pairs", "rings"):
            reply(pairs=pairs(steps[rest[0]], int(rest[1]), switched if name == "pairs" else recorded))
        elif name == "cores":
            placed(int(rest[0]))
            reply(cores=rest[0])
        elif name == "check":
            step = calls if rest[0] == "calls" else steps[rest[0]]
            if rest[0] == "ddp":
                dist.barrier()
            reply(**check(lambda step=step, count=int(rest[1]): [step() for _ in range(count)]))
        elif name in ("profile", "window", "both"):
            reply(**(profiled(token) if name == "profile" else window(token, name == "both")))
        elif name == "fork":
            reply(**forked(token))
        elif name == "state":
            reply(state=state())
        elif name == "totals":
            sums = [sum(of[at] for of in totals().values()) for at in range(3)]
            reply(pid=os.getpid(), launches=sums[0], replayed=sums[1], bytes=sums[2])
        else:
            if name == "ddp":
                dist.barrier()
            before = untimed() if tier != "none" else 0
            answer = timed(steps[name], int(rest[0]))
            reply(**answer, untimed=untimed() - before if tier != "none" else 0)


if __name__ == "__main__":
    main()
