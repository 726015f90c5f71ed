"""Verdicts as the stream worker publishes them."""

import time

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic


def verdict(job, first_step, run="r", ranks=2, step_ns=0):
    """Rank 1 has become late by the host in these 20 steps, the others have not."""
    now, severity = time.time_ns(), np.zeros(ranks + 1, np.int64)
    severity[2] = 2
    texts = {"hosts": [""], "gpu_uuids": [""], "causes": ["ok", "host_stall"], "details": [""], "states": ["ok"],
             "evidence": ["{}"], "groups": [""], "confidences": ["high"]}  # fmt: skip
    columns = {"rank": np.arange(-1, ranks), "severity": severity, "changed": severity // 2, "cause": severity // 2,
               "lost_ns": severity * 500}  # fmt: skip
    steps = {"first_step": first_step, "last_step": first_step + 19, "window_start_ns": now, "window_end_ns": now}
    return Batch(
        Topic.STRAGGLER,
        {"job": job, "run": run, "world_size": ranks, "process_id": "w", "sequence": first_step // 20,
         "rows": ranks + 1, "base_time_ns": now, "step_ns": step_ns, **steps, **texts}, columns,
    )  # fmt: skip
