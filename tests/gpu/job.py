"""A DDP job with faults, for tests/gpu/session.sh: torchrun --nproc-per-node N job.py STEPS. Knows nothing of drumline.

Of every 100 steps the last 50 have a fault: rank 1 waits 15 ms on the host, then rank 2 (the last one where there are
fewer) works 15% more, and so on alternately. In the
30th of every 400 steps rank 1 waits for 4 s, and the kernels of the others for it.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    steps, rank = int(sys.argv[1]), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    layers = [torch.nn.Linear(4096, 4096, bias=False, device="cuda", dtype=torch.bfloat16) for _ in range(16)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), device_ids=[rank], bucket_cap_mb=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    data = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
    late, slow = 1 % dist.get_world_size(), min(2, dist.get_world_size() - 1)
    for step in range(steps):
        torch.cuda.nvtx.range_push(f"step {step}")
        faulty, fault = step % 100 >= 50, step // 100 % 2
        if faulty and fault == 0 and rank == late:
            time.sleep(0.015)
        if step % 400 == 30 and rank == late:
            time.sleep(4)
        x = data
        if faulty and fault == 1 and rank == slow:
            for layer in layers[:7]:  # forward work once more, about 15% of a step
                x = layer(x.detach())
        loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.nvtx.range_pop()
        if step % 50 == 49:
            print(f"rank {rank} step {step} loss {loss.item():.3e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
