"""Take a share of a GPU's time, as another job on it would: zoo_neighbour.py GPU

Each line of the standard input is a share: of each period so much is spent in matrix products. At the first line it
begins to use the GPU, and prints how long a product takes. Ends with its standard input. Where CUDA is missing it
computes nothing.
"""

import os
import sys
import threading
import time

import torch
from zoo_plan import PERIOD_S

device = int(sys.argv[1])
share = 0.0
opened = threading.Event()


def read() -> None:
    global share
    for line in sys.stdin:
        share = float(line)
        opened.set()
    share = -1.0
    opened.set()


def product_s(work: torch.Tensor) -> float:
    """Return how long a product takes when nothing else runs, at the clock that a busy GPU has."""
    best, until = 1.0, time.perf_counter() + 0.5
    while time.perf_counter() < until:
        begin = time.perf_counter()
        for _ in range(8):
            torch.mm(work, work)
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / 8)
    return best


def main() -> None:
    threading.Thread(target=read, daemon=True).start()
    if cores := os.environ.get("ZOO_SPARE_CORES"):
        os.sched_setaffinity(0, set(map(int, cores.split(","))))
    opened.wait()
    if not torch.cuda.is_available():
        print("no CUDA", flush=True)
        while share >= 0:
            time.sleep(0.1)
        return
    torch.cuda.set_device(device)
    work = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) / 64
    took_s = product_s(work)
    print(f"{1e3 * took_s:.4f} ms", flush=True)
    next_s = time.perf_counter()
    while share >= 0:
        if share > 0:
            for _ in range(max(1, round(share * PERIOD_S / took_s))):
                torch.mm(work, work)
            torch.cuda.synchronize()
        next_s = max(next_s + PERIOD_S, time.perf_counter())
        time.sleep(max(0.0, next_s - time.perf_counter()))


main()
