"""One rank of the jobs of tests/gpu/light.py: light_job.py HOW (RANK, WORLD_SIZE and STORE_FILE set).

HOW: collectives (of each kind and size, on one communicator), graph (a CUDA graph of four all_reduce, replayed), killed
(prints a line after each step, until it is killed), graphcost (replays, as many as its standard input says), window
(blocks of steps as its standard input says: `steps N`, or a name of PHASES, which changes what CUPTI does in this
process), cycles (CUPTI comes and goes). Prints JSON objects, one a line.
"""

import contextlib
import ctypes
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import drumline
from drumline.lab.bench.overhead.ddp_job import ddp_launch_bound, pin_threads, recorded_operations, timed

how, rank = sys.argv[1], int(os.environ["RANK"])
CORES = sorted(os.sched_getaffinity(0))
torch.cuda.set_device(rank)
store = f"file://{os.environ['STORE_FILE']}"
dist.init_process_group(
    "nccl", store, rank=rank, world_size=int(os.environ["WORLD_SIZE"]), device_id=torch.device("cuda", rank)
)


def report(**values: object) -> None:
    print(json.dumps(values), flush=True)


def wrapped(model: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])


def collectives() -> None:
    """2,000 collectives in one stream, between products that keep the GPU busy for a while."""
    work = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    data = torch.ones(1 << 22, device="cuda")
    parts = torch.ones(2 << 22, device="cuda")
    for number in range(500):
        for _ in range(number % 5):
            work = (work @ work).clamp(-1, 1)
        size = 1 << (number % 23)
        dist.all_reduce(data[:size])
        dist.all_gather_into_tensor(parts[: 2 * size], data[:size])
        dist.reduce_scatter_tensor(data[:size], parts[: 2 * size])
        dist.broadcast(data[:size], 0)
        if number % 50 == 49:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    report(collectives=2_000)


def four_all_reduce(data: torch.Tensor) -> torch.cuda.CUDAGraph:
    """Return a CUDA graph of four all_reduce, after three plain ones."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            dist.all_reduce(data)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(4):
            dist.all_reduce(data)
    return captured


def graph() -> None:
    """100 replays in steps of their own, the host far ahead; a plain all_reduce in each tenth step too."""
    data = torch.ones(1 << 20, device="cuda")
    captured = four_all_reduce(data)
    for step in range(100):
        drumline.step(step)
        captured.replay()
        if step % 10 == 9:
            dist.all_reduce(data)
    torch.cuda.synchronize()
    drumline.step(100)
    time.sleep(0.2)
    report(replays=100, outside=3 + 10)


def graphcost() -> None:
    """As many replays of a graph of four small all_reduce as each line of the standard input says."""
    data = torch.ones(1 << 10, device="cuda")
    captured = four_all_reduce(data)
    for _ in range(50):
        captured.replay()
    torch.cuda.synchronize()
    report(ready=True)
    for line in sys.stdin:
        count = int(line)
        dist.barrier()
        torch.cuda.synchronize()
        before, begin = recorded_operations()[0], time.perf_counter()
        for _ in range(count):
            captured.replay()
        torch.cuda.synchronize()
        took = time.perf_counter() - begin
        report(us=1e6 * took / count, records_a_replay=(recorded_operations()[0] - before) / count)


def killed() -> None:
    """Steps of 20 all_reduce; each is over on the GPU when its line is written."""
    data = torch.ones(1 << 18, device="cuda")
    for step in range(1 << 30):
        drumline.step(step)
        for _ in range(20):
            dist.all_reduce(data)
        torch.cuda.synchronize()
        os.write(1, f"{step} {time.time_ns()}\n".encode())


def window() -> None:
    """Blocks of a job whose host is the limit, while CUPTI is not there, on, off, and gone."""
    step = ddp_launch_bound(torch, wrapped)
    timed(torch, step, 20)
    gc.freeze()
    gc.disable()
    pin_threads(sorted(os.sched_getaffinity(0)))
    report(ready=True)
    for line in sys.stdin:
        name, _, number = line.strip().partition(" ")
        if name == "steps":
            report(**timed(torch, step, int(number)))
        else:
            torch.cuda.synchronize()
            report(**PHASES[name]())


def cycles() -> None:
    """Six steps recorded, CUPTI finalised by this thread or by another one, four steps without it, and again."""
    from drumline.producers.collector import attach

    step = ddp_launch_bound(torch, wrapped)
    timed(torch, step, 20)
    collector, rows = attach.attached().collector, []
    until = time.monotonic() + float(os.environ["CYCLE_SECONDS"])
    while time.monotonic() < until:
        row = {"on": time.time_ns()}
        for _ in range(6):
            step()
        row["off"] = time.time_ns()

        def leave(row: dict[str, int] = row) -> None:
            collector.yield_to("cycle")
            row |= {"result": finalized()["cuptiFinalize"]}
            collector._recorder._subscribed = False

        thread = threading.Thread(target=leave)
        thread.start()
        if os.environ["CYCLE_THREAD"] == "same":
            thread.join()
        for _ in range(4):
            step()
        thread.join()
        collector.resume_after("cycle")
        rows.append(row)
    report(rows=rows)


def state() -> dict[str, object]:
    """Return what drumline does in this process now."""
    return {"status": drumline.status()}


def placed() -> dict[str, object]:
    """Give the threads and the decoder that came with a window cores beside those of the steps."""
    from drumline.producers.collector import attach

    if len(CORES) >= 4:
        tasks = [path for path in Path("/proc/self/task").iterdir() if path.name != str(os.getpid())]
        tasks += [Path("/proc", str(attachment.decoder))] if (attachment := attach.attached()) else []
        for task in tasks:
            with contextlib.suppress(OSError):  # it has ended
                if not (task / "comm").read_text().startswith("pt_autograd"):
                    os.sched_setaffinity(int(task.name), set(CORES[2:]))
    return state()


def closed() -> dict[str, object]:
    """Detach: everything is switched off, nothing of drumline runs any more."""
    from drumline.producers.collector import attach

    attach.attached().close()
    return state()


def finalized() -> dict[str, object]:
    """Let CUPTI go altogether, while no thread of this process is in it or in CUDA."""
    with open("/proc/self/maps") as maps:
        path = next(line.split()[-1] for line in maps if "libcupti" in line)
    return {"cuptiFinalize": ctypes.CDLL(path).cuptiFinalize()}


PHASES = {"state": state, "placed": placed, "closed": closed, "finalized": finalized}
HOW = {
    "collectives": collectives,
    "graph": graph,
    "graphcost": graphcost,
    "killed": killed,
    "window": window,
    "cycles": cycles,
}
HOW[how]()
dist.barrier()
dist.destroy_process_group()
