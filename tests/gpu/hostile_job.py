"""One GPU process that ends, or runs, badly, for tests/gpu/session.sh: hostile_job.py HOW SECONDS.

Knows nothing of drumline. HOW: end, raise, kill (SIGKILL), os_exit, cuda_error, fork (children that run on), profiler
(PyTorch's, for a while), profiler_first (which begins before CUDA is used), found_first (which searches for torch
before it is imported), unsubscribed (a library gives its CUPTI subscriber back), or spawn (a rank per GPU).
Prints how many kernels named erfinv it launched; those can be counted in the spool.
"""

import ctypes
import importlib.util
import json
import os
import signal
import sys
import time

if "found_first" in sys.argv:
    assert importlib.util.find_spec("torch")

import torch

how, seconds = sys.argv[1], float(sys.argv[2])
launched = 0


def train(until: float) -> None:
    global launched
    data = torch.rand(256, 256, device="cuda")
    out = torch.empty_like(data)
    while time.monotonic() < until:
        torch.cuda.nvtx.range_push(f"step {launched // 200}")
        for _ in range(200):
            torch.erfinv(data, out=out)
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        launched += 200
        time.sleep(0.005)


def rank_of(rank: int, world: int) -> None:
    """Run as torch.multiprocessing.spawn does: no variable has the rank of this process."""
    torch.cuda.set_device(rank)
    store = torch.distributed.TCPStore("127.0.0.1", 29_555, world, is_master=rank == 0)
    torch.distributed.init_process_group("nccl", store=store, rank=rank, world_size=world)
    train(time.monotonic() + seconds)
    torch.distributed.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    print(json.dumps({"rank": rank, "launched": launched}), flush=True)
    torch.distributed.destroy_process_group()


def profiled(span: float) -> None:
    """Train under PyTorch's profiler, which begins slowly: its time counts from when it runs."""
    before = launched
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        train(time.monotonic() + span)
    kernels = sum(event.count for event in seen.key_averages() if "erfinv" in event.key)
    print(json.dumps({"launched under PyTorch's profiler": launched - before, "seen by it": kernels}))


def unsubscribe() -> None:
    """As a library does that subscribes to CUPTI's callbacks for a while: from 13.4 on no kernels come then."""
    with open("/proc/self/maps") as maps:
        cupti = ctypes.CDLL(next(line.split()[-1] for line in maps if "libcupti" in line))
    subscriber, nothing = ctypes.c_void_p(), ctypes.CFUNCTYPE(None)(lambda: None)
    print("subscribe", cupti.cuptiSubscribe(ctypes.byref(subscriber), nothing, None))
    print("unsubscribe", cupti.cuptiUnsubscribe(subscriber))


def main() -> None:
    if how == "spawn":
        torch.multiprocessing.spawn(rank_of, (torch.cuda.device_count(),), torch.cuda.device_count())
        return
    if how == "profiler_first":
        profiled(seconds / 3)
    torch.ones(1, device="cuda").cpu()  # a context takes seconds where many are made at once
    begin = time.monotonic()
    train(begin + seconds / 3)
    if how == "fork":
        children = [os.fork() for _ in range(3)]
        if not all(children):
            time.sleep(seconds / 3)
            os._exit(0)
    if how == "unsubscribed":
        unsubscribe()
    if how == "profiler":
        profiled(seconds / 3)
        begin = time.monotonic() - 2 * seconds / 3
    train(begin + seconds)
    print(json.dumps({"how": how, "launched": launched}), flush=True)
    if how == "raise":
        raise RuntimeError("as asked")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "os_exit":
        os._exit(7)
    if how == "cuda_error":
        torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].cpu()


if __name__ == "__main__":
    main()
