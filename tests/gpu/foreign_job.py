"""One rank of a job that other tools record: PyTorch's profiler, NCCL's Inspector, the Flight Recorder and NCCL RAS.

    torchrun --nproc-per-node 2 foreign_job.py train OUT FAULT STEPS      trace-rank-N.json.gz
    torchrun --nproc-per-node 2 foreign_job.py plain OUT FAULT STEPS      trains without the profiler
    torchrun --nproc-per-node N foreign_job.py hang OUT SCENARIO          what is known of a hang

FAULT: none, host (rank 1 sleeps in each step) or gpu (rank 1 multiplies more). With STEPS above 100, the fault begins
in the middle.
"""

import json
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HAS_GPU = torch.cuda.device_count() > RANK
DEVICE = torch.device("cuda", RANK) if HAS_GPU else torch.device("cpu")
#: How long a scenario hangs before it is looked at, and what a call may take at most; s.
STATE_AFTER_S, TIMEOUT_S = 6, 60


def train(out: Path, fault: str, steps: int, profiled: bool) -> None:
    """Train with DDP. The profiler waits for four steps, and records from the seventh on."""
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.GELU())]).to(DEVICE)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[RANK], bucket_cap_mb=40)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    rows = torch.randn(2048, 4096, device=DEVICE)
    more = torch.randn(8192, 8192, device=DEVICE)
    lengths = []

    def step(number: int) -> None:
        began = time.perf_counter()
        faulty = RANK == 1 and (steps <= 100 or number >= steps // 2)
        if faulty and fault == "host":
            time.sleep(0.006)
        if faulty and fault == "gpu":
            for _ in range(2):
                more @ more
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        lengths.append(time.perf_counter() - began)

    if profiled:
        schedule = torch.profiler.schedule(wait=4, warmup=2, active=16, repeat=1)
        with torch.profiler.profile(schedule=schedule) as profiler:
            for number in range(steps):
                step(number)
                profiler.step()
        profiler.export_chrome_trace(str(out / f"trace-rank-{RANK}.json.gz"))
    else:
        for number in range(steps):
            step(number)
    (out / f"lengths-{RANK}.json").write_text(json.dumps([round(length, 6) for length in lengths]))


def ras(path: Path) -> None:
    """Write what NCCL RAS answers: `SET FORMAT json`, `VERBOSE STATUS`."""
    try:
        with socket.create_connection(("localhost", 28028), timeout=20) as peer:
            answers = peer.makefile("r")
            for request in ("CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT json"):
                peer.sendall(f"{request}\n".encode())
                print("ras", request, "->", answers.readline().strip(), flush=True)
            peer.sendall(b"VERBOSE STATUS\n")
            path.write_text(answers.read())
    except OSError as error:
        print("ras", repr(error), flush=True)


def write_state(out: Path) -> None:
    """Write the Flight Recorder's state of this rank, rank 0 also what RAS knows, and end the process."""
    time.sleep(STATE_AFTER_S)
    if HAS_GPU:
        (out / f"nccl_trace_rank_{RANK}").write_bytes(torch._C._distributed_c10d._dump_nccl_trace())
        (out / f"nccl_trace_rank_{RANK}.json").write_bytes(torch._C._distributed_c10d._dump_nccl_trace_json())
    else:
        (out / f"gloo_trace_rank_{RANK}").write_bytes(torch._C._distributed_c10d._dump_fr_trace())
        (out / f"gloo_trace_rank_{RANK}.json").write_bytes(torch._C._distributed_c10d._dump_fr_trace_json())
    if HAS_GPU and RANK == 0:
        ras(out / "ras.json")
    time.sleep(3)
    os._exit(0)


def train_step(group=None) -> None:
    dist.all_reduce(torch.ones(1024, device=DEVICE), group=group)


def stay_away() -> None:
    time.sleep(1000)


def hang(out: Path, scenario: str) -> None:
    """Run five steps, then let the scenario hang the job."""
    tp = [dist.new_group([first, first + 1]) for first in range(0, WORLD, 2)][RANK // 2]
    dp = [dist.new_group(list(range(first, WORLD, 2))) for first in range(2)][RANK % 2] if WORLD > 2 else tp
    second = dist.new_group(list(range(WORLD)))
    for _ in range(5):
        train_step()
        train_step(tp)
        train_step(second)
    if HAS_GPU:
        torch.cuda.synchronize()
    threading.Thread(target=write_state, args=(out,), daemon=True).start()
    last = RANK == WORLD - 1
    if scenario == "not_called" and last:
        stay_away()
    elif scenario == "wrong_operation" and last:
        dist.all_gather([torch.ones(1024, device=DEVICE) for _ in range(WORLD)], torch.ones(1024, device=DEVICE))
    elif scenario == "wrong_size" and last:
        dist.all_reduce(torch.ones(4096, device=DEVICE))
    elif scenario == "order" and RANK % 2:
        train_step(second)
    elif scenario == "receive_without_send":
        if RANK == 0:
            dist.recv(torch.ones(16, device=DEVICE), WORLD - 1)
    elif scenario == "ended" and last:
        os._exit(0)
    elif scenario == "gpu_busy" and last:
        for _ in range(200):
            torch.cuda._sleep(2_000_000_000)
    elif scenario == "chain":  # the last rank does not come to its tensor group; its peer does not come to dp
        if last:
            stay_away()
        train_step(tp)
        train_step(dp)
    train_step()
    train_step(second)
    if HAS_GPU:
        torch.cuda.synchronize()
    time.sleep(1000)


def main() -> None:
    """Run what the arguments say."""
    mode, out = sys.argv[1], Path(sys.argv[2])
    if HAS_GPU:
        torch.cuda.set_device(DEVICE)
    limit = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("nccl" if HAS_GPU else "gloo", timeout=limit, device_id=DEVICE if HAS_GPU else None)
    if mode == "hang":
        hang(out, sys.argv[3])
    else:
        train(out, sys.argv[3], int(sys.argv[4]), mode == "train")
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
