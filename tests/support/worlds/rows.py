"""Batches of simulated worlds: as CUPTI records them, and as the light tier derives them from NCCL's operations."""

from __future__ import annotations

import numpy as np
from support.worlds.engine import Run

from drumline.producers.derive.light import Operations, light_rows
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.steps.steps import Steps
from drumline.producers.identity import CUPTI, NCCL, Identity
from drumline.producers.replay.operation_table.job import FIRST_NS, job_batches
from drumline.producers.replay.operation_table.places import communicator_hash
from drumline.producers.replay.operation_table.process_rows import Communication, ProcessRows, process_rows
from drumline.schemas.batch import Batch

#: Number of an operation in the dictionary of gpu.collective.v1.
CODES = {name: code for code, name in enumerate(nccl.OPERATIONS)}


def world_batches(run: Run, light: bool = False) -> list[tuple[int, Batch]]:
    """Return (time of arrival, batch) of a run. `light`: measured by NCCL alone."""
    rows = [_rank_rows(run, rank, light) for rank in range(run.world.ranks)]
    source = NCCL if light else CUPTI
    return list(job_batches(rows, [_identity(rank, run.world.ranks, source) for rank in range(len(rows))]))


def _identity(rank: int, ranks: int, source: str) -> Identity:
    host, gpu = f"host{rank // 8}", f"GPU-{rank}"
    return Identity("job", "run", rank, rank % 8, ranks, host, gpu, f"p{rank}", source=source)


def _rank_rows(run: Run, rank: int, light: bool) -> ProcessRows:
    stage, data, tensor = run.world.place(rank)
    log, bounds = run.logs[stage], run.bounds[:, stage, data, tensor].astype(np.int64) + FIRST_NS
    steps = Steps(np.arange(len(bounds) - 1), bounds[:-1], bounds[1:])
    times = np.rint([[entry.call[data, tensor], entry.start[data, tensor], entry.end[data, tensor]] for entry in log])
    call, start, end = times.astype(np.int64).T + FIRST_NS
    is_compute = np.array([not entry.operation for entry in log])
    operation = np.array([CODES[entry.operation] for entry in log], np.uint8)
    step = np.array([entry.step for entry in log])
    hashes = np.array([communicator_hash(entry.named(data, tensor)) for entry in log if entry.named], np.uint64)
    at = ~is_compute
    size = np.full(int(at.sum()), 1 << 20, np.uint64)
    if light:
        known, index = np.unique(hashes, return_inverse=True)
        operations = Operations(index.astype(np.uint16), call[at], start[at], end[at], step[at], operation[at], size)
        rows = light_rows(operations, known, steps)
        return ProcessRows(rows.collectives, rows.steps, np.zeros(len(steps.number), np.int64))
    communication = Communication(hashes, operation[at], size, step[at], start[at], end[at])
    kernels = run.kernels[:, stage, data, tensor].astype(np.int64)
    return process_rows(communication, (start[is_compute], end[is_compute]), steps, (kernels, 100 * kernels))
