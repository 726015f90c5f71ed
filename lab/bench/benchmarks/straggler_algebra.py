"""Measures the straggler algebra without Kafka: CPU of both stages for a second of a large job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from drumline.lab.bench.result import BenchReport, Progress
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results
from drumline.streams.stragglers.stage import JobStage

RANKS, STEPS, COLLECTIVES = 1024, 40, 24
STEP_NS, BEGIN_NS = 1_000_000_000, 10**18
#: Columns of steps that are not known here.
UNKNOWN = ("copy_pageable_ns", "sync_ns", "input_ns", "load_ns", "gc_ns", "checkpoint_ns")
#: Cores.
TARGET = 1.0


def job(ranks: int, steps: int, collectives: int, late: int) -> Iterator[tuple[int, Batch]]:
    """Yield (time, batch) of a synthetic job: one step a second on all ranks, in one communicator.

    Of each rank and step there is a batch of collectives, one of steps and one of samples. Rank `late` enters each step
    0.1 s after its peers.
    """
    dice = np.random.default_rng(0)
    operations = ["AllReduce"]
    for step in range(steps):
        begin = BEGIN_NS + step * STEP_NS
        wait = dice.integers(0, 2_000_000, (ranks, collectives))
        wait -= wait.min(0)
        wait[:, 0] += 100_000_000
        wait[late, 0] = 0
        for rank in range(ranks):
            identity = {"job": "bench", "run": "bench", "rank": rank, "world_size": ranks}
            identity |= {"host": f"host{rank // 8}", "gpu_uuid": f"GPU-{rank}"}
            head = {**identity, "complete_step": step}
            waited = int(wait[rank].sum())
            number = np.full(collectives, step)
            start = begin + np.arange(collectives) * (STEP_NS // collectives)
            columns: dict[str, Any] = {"step": number, "ordinal": np.arange(collectives), "start_ns": start}
            columns |= {"duration_ns": 500_000 + wait[rank], "covered_ns": np.zeros(collectives, np.int64)}
            columns |= {"operation": np.zeros(collectives, "u1"), "bytes": np.full(collectives, 1 << 20)}
            more = {"communicator": "c", "operations": operations, "rows": collectives}
            yield begin + STEP_NS, Batch(Topic.COLLECTIVE, {**head, **more}, columns)
            budget = dict.fromkeys(UNKNOWN, -1)
            budget |= {"step": step, "start_ns": begin, "duration_ns": STEP_NS, "gpu_duration_ns": STEP_NS}
            budget |= {"compute_ns": STEP_NS * 8 // 10, "copy_ns": 0, "compute_overlapped_ns": 0, "skipped": 0}
            budget |= {"comm_exposed_ns": waited, "idle_ns": STEP_NS // 5 - waited, "kernels": 1000, "blocks": 100_000}
            row = {name: np.array([value]) for name, value in budget.items()}
            yield begin + STEP_NS, Batch(Topic.STEP, {**head, "rows": 1}, row)
            sample = {"time_ns": begin, "sm_clock": 1980, "throttle_reasons": 0, "processes": 1}
            sample |= {"ecc_uncorrected": 0, "xid": 0, "util_gpu": 90, "job_util_sm": 90}
            columns = {name: np.array([value]) for name, value in sample.items()}
            yield begin + STEP_NS, Batch(Topic.DEVICE, {**identity, "rows": 1}, columns)


def bench_algebra(
    ranks: int = RANKS, steps: int = STEPS, collectives: int = COLLECTIVES, progress: Progress = lambda _: None
) -> BenchReport:
    """Measure CPU seconds of both stages for a second of the job, and whether they name the late rank."""
    late, config = ranks // 3, StragglerConfig()
    lateness, jobs = CommunicatorStage({}, config), JobStage({}, config)
    stages = [((Topic.COLLECTIVE,), lateness), ((Topic.LATENESS, Topic.STEP, Topic.DEVICE), jobs)]
    progress(f"{ranks:,} ranks: making {steps} steps")
    batches = list(job(ranks, steps, collectives, late))
    progress(f"{ranks:,} ranks: evaluating")
    began = time.process_time()
    verdicts = [batch for batch in results(batches, stages, config.idle_ns) if batch.topic == Topic.STRAGGLER]  # type: ignore[arg-type]
    spent = (time.process_time() - began) / steps
    state = sum(len(key) + len(value) for stage in (lateness, jobs) for key, value in stage.store.items())
    named = {tuple(b.columns["rank"][np.isin(b.columns["severity"], (2, 3))].tolist()) for b in verdicts}
    report = BenchReport("algebra", f"{ranks:,} made-up ranks, one late, {steps} steps of a second", "none")
    report.add(
        f"straggler algebra alone, {ranks:,} ranks at one step a second", spent, "cores", target=TARGET, at_most=True
    )
    report.add("batches", len(batches) / steps, "1/s")
    report.add("state of both stages", state / 2**20, "MiB")
    report.notes.append(
        f"CPU seconds of the lateness and straggler stages in one process for a second of the job, without Kafka, "
        f"decoding or a changelog (state in a dict). {collectives} collectives a step in a communicator of all ranks. "
        f"Of each rank a batch of collectives, one of steps and one GPU sample a second. "
        f"{len(verdicts)} verdicts, ranks they name: {', '.join(map(str, map(list, sorted(named)))) or 'none'}; "
        f"late was [{late}]."
    )
    return report
