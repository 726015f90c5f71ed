"""One rank of the jobs of hosts.py, a DDP job: hosts_job.py MEGABYTES COMPUTE_MS (RANK, WORLD_SIZE, MASTER_ADDR set).

With FOLDER it steps until it is killed, and prints a line a step: its number and when it ended. While the folder
has a file `late-RANK`, its host sleeps as many ms in each step. Without, each line of its standard input says how many
steps it runs and whether transfers are recorded in them (0 or 1); it prints their times (JSON).
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from drumline.lab.bench.overhead.ddp_job import timed
from drumline.producers.nccl_profiler import library

megabytes, compute_ms, rank = int(sys.argv[1]), float(sys.argv[2]), int(os.environ["RANK"])
torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
SIZE, WORK = 2048, 8192
layers = [
    torch.nn.Linear(SIZE, SIZE, bias=False, device="cuda", dtype=torch.bfloat16)
    for _ in range(max(1, (megabytes << 20) // (2 * SIZE * SIZE)))
]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), device_ids=[0], bucket_cap_mb=24)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
data = torch.randn(512, SIZE, device="cuda", dtype=torch.bfloat16)
work = torch.randn(WORK, WORK, device="cuda", dtype=torch.bfloat16)
products = 1


def step() -> None:
    result = work
    for _ in range(products):
        result = torch.mm(work, work)
    loss = model(data).float().square().mean() + 0.0 * result[0, 0].float()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()


def calibrate() -> int:
    """Return how many products take as long as asked: the same on all ranks."""
    for _ in range(3):
        torch.mm(work, work)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(10):
        torch.mm(work, work)
    torch.cuda.synchronize()
    count = torch.tensor([compute_ms / 1e3 / ((time.perf_counter() - begin) / 10)], device="cuda")
    dist.broadcast(count, 0)
    return max(1, round(count.item()))


products = calibrate()
for _ in range(3):
    step()
if folder := os.environ.get("FOLDER"):
    late, number = Path(folder, f"late-{rank}"), 0
    while True:
        with contextlib.suppress(FileNotFoundError):
            time.sleep(float(late.read_text() or 0) / 1e3)
        step()
        print(number, time.time_ns(), flush=True)
        number += 1
print(json.dumps({"ready": True, "products": products}), flush=True)
for line in sys.stdin:
    steps, is_recorded = map(int, line.split())
    if not library.record_transfers(bool(is_recorded)):
        raise SystemExit("no ring: nothing is recorded")
    times = timed(torch, step, steps)
    print(json.dumps(times), flush=True)
dist.destroy_process_group()
