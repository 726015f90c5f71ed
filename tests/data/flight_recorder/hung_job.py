"""One rank of four of a job that hangs, which dumps its Flight Recorder: hung_job.py SCENARIO RANK FOLDER PORT.

All four are started at once, with torch 2.15. No test runs this.
"""

import datetime
import os
import sys
import threading
import time
from pathlib import Path

SCENARIO, RANK, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
os.environ |= {"TORCH_FR_BUFFER_SIZE": "100", "RANK": str(RANK), "WORLD_SIZE": "4"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[4]}

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402


def dump():
    """Write both forms after 3 s, and end when all ranks have."""
    time.sleep(3)
    (FOLDER / f"nccl_trace_rank_{RANK}").write_bytes(c10d._dump_fr_trace())
    (FOLDER / f"rank_{RANK}.json").write_bytes(c10d._dump_fr_trace_json())
    while len([*FOLDER.glob("*.json")]) < 4:
        time.sleep(0.3)
    os._exit(0)


def step(size=8, group=None):
    dist.all_reduce(torch.ones(size), group=group)


def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    threading.Thread(target=dump, daemon=True).start()
    for _ in range(3):
        step()
    if SCENARIO == "not_called" and RANK == 2:
        time.sleep(400)
    elif SCENARIO == "other_size" and RANK == 1:
        dist.all_gather_into_tensor(torch.ones(16), torch.ones(4))
    elif SCENARIO == "mesh":  # rank 3 stops between two steps
        tp, _ = dist.new_subgroups_by_enumeration([[0, 1], [2, 3]], group_desc="tp")
        dp, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]], group_desc="dp")
        for number in range(2):
            if RANK == 3 and number:
                time.sleep(400)
            step(4, tp)
            step(4, dp)
    elif SCENARIO == "circle":  # ranks 0 and 1 call two groups in another order
        groups = [dist.new_group([0, 1], group_desc=name) for name in ("first", "second")]
        if RANK < 2:
            for group in groups if RANK == 0 else reversed(groups):
                step(4, group)
    elif SCENARIO == "caught" and RANK != 1:  # rank 1 leaves out a step
        step()
    step()
    time.sleep(400)


main()
