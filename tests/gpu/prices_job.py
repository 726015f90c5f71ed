"""One rank of a process that uses CUPTI in one way: prices_job.py MODE LIBRARY CUPTI

RANK, WORLD_SIZE and STORE_FILE are set. MODE: of prices.c, begun before the first launch; LIBRARY: prices.c, built;
CUPTI: libcupti to use, "" = the one that PyTorch has mapped. Reads a command a line and prints JSON, one object a line:
a workload and the number of its steps (`launches 2000`), `counts WORKLOAD STEPS` (records that CUPTI returned of it),
`off`, `finalize`. All ranks get the commands of `ddp`, rank 0 those of the others.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from launch_bound import ddp, decode, timed

from drumline.lab.bench.overhead.ddp_job import pin_threads

mode, rank = sys.argv[1], int(os.environ["RANK"])
prices = ctypes.CDLL(sys.argv[2])
prices.price_launches.restype = ctypes.c_double
COUNTS = ("buffers", "bytes", "drops", "launches", "records", "kernels", "launched", "timed", "record_bytes")
#: Launches and replays of a step of prices.c's loops.
LOOP = {"launches": 2000, "replays": 20}


def libcupti() -> str:
    """Return the libcupti that PyTorch has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "libcupti.so" in line)


def reply(**values: object) -> None:
    print(json.dumps(values), flush=True)


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
    steps = {"ddp": ddp(rank), "decode": decode()}
    dist.barrier()
    for step in steps.values():
        timed(step, 10)
    pin_threads(sorted(os.sched_getaffinity(0)))
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
