"""One rank of a process that uses CUPTI in one way: prices_job.py MODE LIBRARY CUPTI

RANK, WORLD_SIZE and STORE_FILE are set. MODE: of prices.c, begun before the first launch; LIBRARY: prices.c, built;
CUPTI: libcupti to use, "" = the one that PyTorch has mapped. Reads a command a line and prints JSON, one object a line:
a workload and the number of its steps (`launches 2000`), `counts WORKLOAD STEPS` (records that CUPTI returned of it),
`off`, `finalize`. All ranks get the commands of `ddp`, rank 0 those of the others.
"""

import contextlib
import ctypes
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

mode, rank = sys.argv[1], int(os.environ["RANK"])
prices = ctypes.CDLL(sys.argv[2])
prices.price_launches.restype = ctypes.c_double
cores = sorted(os.sched_getaffinity(0))
COUNTS = ("buffers", "bytes", "drops", "launches", "records", "kernels", "record_bytes")
#: Launches and replays of a step of prices.c's loops.
LOOP = {"launches": 2000, "replays": 20}


def libcupti() -> str:
    """Return the libcupti that PyTorch has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "libcupti.so" in line)


def reply(**values: object) -> None:
    print(json.dumps(values), flush=True)


def pin_threads() -> None:
    """Give the main thread the first core of the process, autograd's the second, and all others the rest."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            is_autograd = (task / "comm").read_text().startswith("pt_autograd")
            os.sched_setaffinity(int(task.name), {cores[1]} if is_autograd else set(cores[2:]))
    os.sched_setaffinity(os.getpid(), {cores[0]})


def ddp() -> Callable[[], None]:
    """Return a step of a DDP transformer that the host launches more slowly than the GPU computes."""
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, 0.0, batch_first=True, device="cuda")
    encoder = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    model = torch.nn.parallel.DistributedDataParallel(encoder, device_ids=[rank])
    data = torch.randn(2, 256, 768, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, foreach=True)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()

    return step


def decode() -> Callable[[], None]:
    """Return a step that decodes a token by an eager transformer with a cache of keys and values."""
    width, heads, layers, cached = 1024, 16, 16, 256
    weights = [
        [torch.randn(width, out, device="cuda", dtype=torch.bfloat16) / 32 for out in (3 * width, width, 4 * width)]
        + [torch.randn(4 * width, width, device="cuda", dtype=torch.bfloat16) / 64]
        for _ in range(layers)
    ]
    caches = torch.zeros(layers, 2, 1, heads, cached, width // heads, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def step() -> None:
        x = torch.ones(1, 1, width, device="cuda", dtype=torch.bfloat16)
        for (qkv, out, up, down), cache in zip(weights, caches, strict=True):
            q, k, v = (torch.rms_norm(x, (width,)) @ qkv).view(1, 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
            keys = torch.cat((cache[0][:, :, 1:], k), 2)
            values = torch.cat((cache[1][:, :, 1:], v), 2)
            mixed = torch.nn.functional.scaled_dot_product_attention(q, keys, values)
            x = x + mixed.transpose(1, 2).reshape(1, 1, width) @ out
            x = x + torch.nn.functional.silu(torch.rms_norm(x, (width,)) @ up) @ down
        torch.cuda.synchronize()

    return step


def timed(step: Callable[[], None], steps: int, warm: int = 3) -> dict[str, float]:
    """Return the median time and the mean CPU time of a step; us."""
    gc.collect()
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    cpu, times = time.process_time(), []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return {"us": 1e6 * median(times), "cpu_us": 1e6 * (time.process_time() - cpu) / steps}


def looped(replays: bool, steps: int) -> dict[str, float]:
    """Return the median of price_launches; us a launch or replay."""
    count = LOOP["replays" if replays else "launches"]
    cpu = time.process_time()
    times = [prices.price_launches(count, int(replays)) / 1e3 for _ in range(steps)]
    return {"us": median(times), "cpu_us": 1e6 * (time.process_time() - cpu) / steps / count}


def counted(run: Callable[[], object]) -> dict[str, int]:
    """Return what CUPTI returned of a run, by prices.c's counters."""
    counts = (ctypes.c_uint64 * len(COUNTS))()
    torch.cuda.synchronize()
    prices.price_counts(counts)
    before = dict(zip(COUNTS, counts, strict=True))
    prices.price_count_records(1)
    run()
    torch.cuda.synchronize()
    time.sleep(0.6)
    prices.price_counts(counts)
    prices.price_count_records(0)
    after = dict(zip(COUNTS, counts, strict=True))
    return {name: after[name] - before[name] for name in COUNTS[:-1]} | {"record_bytes": after["record_bytes"]}


def main() -> None:
    """Begin the mode, then answer commands until the end of the input."""
    torch.set_num_threads(1)
    cupti = sys.argv[3] or libcupti()
    begun = prices.price_begin(mode.encode(), cupti.encode())
    version = ctypes.c_uint32(0)
    ctypes.CDLL(cupti).cuptiGetVersion(ctypes.byref(version))
    torch.cuda.set_device(rank)
    torch.zeros(1, device="cuda")
    if begun:
        reply(refused=begun, cupti=version.value)
        return
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl", f"file://{os.environ['STORE_FILE']}", rank=rank, world_size=world)
    if loaded := prices.price_load():
        reply(refused=f"cuda {loaded}")
        return
    steps = {"ddp": ddp(), "decode": decode()}
    dist.barrier()
    for step in steps.values():
        timed(step, 10)
    if len(cores) >= 4:
        pin_threads()
    reply(ready=mode, cupti=version.value)
    for line in sys.stdin:
        name, *rest = line.split()
        if name in ("off", "finalize"):
            reply(result=prices.price_end(int(name == "finalize")))
            continue
        workload, count = (rest[0], int(rest[1])) if name == "counts" else (name, int(rest[0]))
        if workload == "ddp":
            dist.barrier()

        def run(workload: str = workload, count: int = count) -> dict[str, float]:
            looped_run = workload in LOOP
            return looped(workload == "replays", count) if looped_run else timed(steps[workload], count)

        reply(**(counted(run) if name == "counts" else run()))


if __name__ == "__main__":
    main()
