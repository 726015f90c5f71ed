"""Verdicts as stream workers publish them, moved to a time; and windows of many ranks."""

from __future__ import annotations

from functools import cache

import numpy as np
from support.straggler_simulator import MS, Fault, batches, ddp, simulate

from drumline.schemas.batch import Batch, dictionary
from drumline.schemas.record_table import BatchTable
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.offline import verdicts

SECOND = 1_000_000_000
NOW = 1_800_000_000 * SECOND
#: The rank that the simulated job waits for, and what it costs in each step.
LATE = Fault(3, "idle", 25 * MS)


@cache
def simulated(ranks=8, steps=80, faults=(LATE,)):
    """All revisions of a simulated job's verdicts."""
    return tuple(verdicts(batches(simulate(ddp(ranks), steps, faults)), StragglerConfig()))


def moved(batch, end_ns, **envelope):
    """A copy of a window that ends at a time; `envelope`: what else differs."""
    by_ns = end_ns - batch.envelope["window_end_ns"]
    times = ("window_start_ns", "window_end_ns", "sent_ns", "attempt_start_ns")
    later = {name: batch.envelope[name] + by_ns for name in times if batch.envelope.get(name)}
    return Batch(batch.topic, {"evaluation": "", **batch.envelope, **later, **envelope}, dict(batch.columns))


def late_job(end_ns=NOW, **envelope):
    """The last window of a job that rank 3 holds back."""
    return moved(simulated()[-1], end_ns, **envelope)


def healthy_job(end_ns=NOW, **envelope):
    return moved(simulated(faults=())[-1], end_ns, **envelope)


def wide_window(ranks, end_ns=NOW, job="wide", run="1", late=()):
    """A window of many ranks, each with a GPU; the late ones are critical, and the last of them loses most."""
    numbers = [-1, *range(ranks)]
    hosts, host = dictionary(["", *(f"node-{rank // 8:04}" for rank in range(ranks))])
    gpus, gpu = dictionary(["", *(f"GPU-{rank:08x}-0000-4000-8000-{rank:012x}" for rank in range(ranks))])
    order = {rank: place + 1 for place, rank in enumerate(late)}
    lost = np.array([0.0, *(float(order.get(rank, 0)) for rank in range(ranks))])
    is_late = lost > 0
    count = len(numbers)
    columns = {
        "rank": np.array(numbers, "<i4"), "host": np.array(host, "<u4"), "gpu_uuid": np.array(gpu, "<u4"),
        "severity": np.where(is_late, 3, 0).astype("i1"), "state": np.where(is_late, 1, 0).astype("<u4"),
        "changed": np.zeros(count, "u1"), "episode_first_step": np.full(count, -1, "<i8"),
        "episode_last_step": np.full(count, -1, "<i8"), "cause": np.where(is_late, 1, 0).astype("<u4"),
        "detail": np.zeros(count, "<u4"), "group": np.zeros(count, "<u4"), "confidence": np.zeros(count, "<u4"),
        "lost_ns": (lost * SECOND).astype("<i8"), "lost_share": lost / 1000.0,
        "lateness_ns": (lost * 20 * MS + np.arange(count)).astype("<i8"), "wait_ns": np.zeros(count, "<i8"),
        "gpu_seconds_lost": lost, "money_lost": np.zeros(count), "evidence_json": np.zeros(count, "<u4"),
    }  # fmt: skip
    envelope = {
        "job": job, "run": run, "world_size": ranks, "process_id": "p", "sequence": 0, "rows": count, "revision": 0,
        "attempt_start_ns": end_ns - 3600 * SECOND, "evaluation": "e", "first_step": 100, "last_step": 119,
        "window_start_ns": end_ns - 10 * SECOND, "window_end_ns": end_ns, "sent_ns": end_ns, "ranks_seen": ranks,
        "steps_used": 20, "steps_skipped": 0, "step_ns": SECOND // 2, "base_time_ns": end_ns,
        "hosts": hosts, "gpu_uuids": gpus, "causes": ["ok", "host_stall"], "details": [""],
        "states": ["ok", "critical"], "evidence": ["{}"], "groups": [""], "confidences": ["none"],
    }  # fmt: skip
    return Batch(Topic.STRAGGLER, envelope, columns)


def hang(state, ranks=(), time_ns=NOW, episode=1, revision=0, reason="not_called", **envelope):
    """A record of a standstill that names ranks; state moving or over takes every name back."""
    rows = [-1, *ranks]
    reasons, index = dictionary([reason if state in ("standing", "hung") else ""] * len(rows))
    hosts, host = dictionary(["", *(f"h{rank}" for rank in ranks)])
    gpus, gpu = dictionary(["", *(f"GPU-{rank}" for rank in ranks)])
    columns = {"rank": np.array(rows, "<i4"), "host": np.array(host, "<u4"), "gpu_uuid": np.array(gpu, "<u4"),
               "reason": np.array(index, "<u4")}  # fmt: skip
    return Batch(
        Topic.HANG,
        {"job": "j", "run": "r", "world_size": 8, "process_id": "p", "sequence": 0, "rows": len(rows),
         "episode": episode, "revision": revision, "state": state, "start_ns": time_ns - 150 * SECOND,
         "time_ns": time_ns, "attempt_start_ns": 1, "ranks_seen": 8, "base_time_ns": time_ns, "sent_ns": time_ns,
         "hosts": hosts, "gpu_uuids": gpus, "reasons": reasons, "communicators": [""], "operations": [""],
         "datatypes": [""], "notes": [""], **envelope},
        columns,
    )  # fmt: skip


def process(rank, pod, job="j", run="r", start_ns=1, **envelope):
    """A record of gpu.process.v1."""
    return Batch(
        Topic.PROCESS,
        {"job": job, "run": run, "rank": rank, "local_rank": rank, "world_size": 8, "host": f"h{rank}",
         "gpu_uuid": f"GPU-{rank}", "process_id": f"{job}-{run}-{rank}", "sequence": 0, "rows": 1,
         "start_ns": start_ns, "k8s_namespace": "ml", "k8s_pod": pod, **envelope},
        {},
    )  # fmt: skip


def lost(host, gpu, is_lost, time_ns=NOW, **envelope):
    """A sample of a GPU."""
    sample = Batch(Topic.DEVICE, {"host": host, "gpu_uuid": gpu, "job": "", "run": "", "rows": 1, **envelope},
                  {"time_ns": np.array([time_ns]), "lost": np.array([is_lost])})  # fmt: skip
    return BatchTable.of([sample])
