"""One rank of a job of the zoo: zoo_job.py SHAPE

RANK, LOCAL_RANK, WORLD_SIZE, MASTER_* and ZOO_* are set (zoo.py). Waits for the file ZOO_GATE before it uses a GPU.
CUPTI records under policy `always`. NCCL's plugin is loaded beside it, and what this module changes lets the ring have
what it has under policy `light`: marks of steps, and the measured steps that the job's pace allows.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import zoo_parallel
import zoo_pipelines
import zoo_training
from causes_faults import no_core_dumps
from zoo_parts import CUDA, DEVICE, RANK, seed
from zoo_plan import Plan

import drumline
from drumline.producers.collector import marks
from drumline.producers.nccl_profiler import library

SHAPES = {
    "moe": zoo_training.moe,
    "accumulation": zoo_training.accumulation,
    "pipeline": zoo_pipelines.pipeline,
    "rl": zoo_training.rl,
    "tp_decode": zoo_parallel.tp_decode,
    "fsdp2": zoo_training.fsdp2,
    "ddp": zoo_training.plain_ddp,
    "ddp_buffers": zoo_training.ddp_buffers,
    "lengths": zoo_training.lengths,
    "tp": zoo_parallel.tp,
    "one_f_one_b": zoo_pipelines.one_f_one_b,
    "interleaved": zoo_pipelines.interleaved,
    "context": zoo_parallel.context,
    "recommender": zoo_parallel.recommender,
    "evaluation": zoo_training.evaluation,
    "compiled": zoo_training.compiled,
    "two_hosts": zoo_training.two_hosts,
}


class StepMarks:
    """Passes the job's marks on to the ring, and keeps the number of the step that has begun."""

    def __init__(self) -> None:
        self.number = -1

    def mark(self, kind: int, number: int, name: str, source: int) -> bool:
        if kind == library.STEP_MARK:
            self.number = number
        return library.mark(kind, number, name, source)


def measure_as_light() -> None:
    """Let NCCL measure as many steps as under policy `light`, where CUPTI's recording asks for all; a graph has all."""
    time_all = library.time_all
    library.time_all = lambda on: time_all(on and marks.graph_was_captured)


def use_gpu(steps: StepMarks) -> None:
    """Begin to use the GPU. drumline attaches CUPTI then, which it does not where the ring has marks already."""
    if CUDA:
        measure_as_light()
        torch.cuda.set_device(DEVICE)
        torch.cuda.init()
        print(f"drumline: {drumline.status()}", flush=True)
    marks.ring = steps.mark


def main() -> None:
    no_core_dumps()
    torch.manual_seed(seed)
    steps = StepMarks()
    plan = Plan(RANK, lambda: steps.number)
    print("ready", flush=True)
    while not Path(os.environ["ZOO_GATE"]).exists():
        time.sleep(0.05)
    plan.open()
    use_gpu(steps)
    dist.init_process_group("nccl", device_id=DEVICE) if CUDA else dist.init_process_group("gloo")
    step = SHAPES[sys.argv[1]]()
    while True:
        step()
        if not CUDA:  # drumline attaches to CUDA only
            steps.mark(library.STEP_MARK, plan.steps, "", marks.FROM_OPTIMIZER)
        if plan.step():
            break
    if CUDA:
        torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


main()
