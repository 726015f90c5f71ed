"""The metrics about jobs, ranks and GPUs that `drumline exporter` serves: name, help, labels.

All are gauges of what is known now; docs/reference/metrics.md lists them. Unlike those of metrics.py, their label
values are names of jobs, hosts and GPUs: the exporter bounds how many series there are.
"""

from __future__ import annotations

from drumline.infra.telemetry.metrics import Metric

JOB = ("job", "run")
RANK = (*JOB, "rank", "host", "gpu_uuid", "namespace", "pod")
VERDICT = ("state", "cause", "detail")

#: All of them, in the order in which they are served.
VERDICT_METRICS: list[Metric] = []


def _gauge(subject: str, help: str, *labels: str) -> Metric:
    metric = Metric("exporter", f"drumline_{subject}", "gauge", help, labels)
    VERDICT_METRICS.append(metric)
    return metric


JOBS = _gauge("jobs", "runs that are live, by state; those without series of their own too", "state")
JOB_STATE = _gauge(
    "job_state",
    "1 for the state of the run: hung and standing outrank its worst alarm, insufficient_data is no verdict",
    *JOB, *VERDICT,
)  # fmt: skip
JOB_SEVERITY = _gauge(
    "job_severity", "-1 insufficient data, 0 ok, 1 suspect or standing, 2 warning, 3 critical or hung", *JOB
)
JOB_RANKS = _gauge("job_ranks", "ranks of the newest window, by the level of their alarm", *JOB, "state")
JOB_WORLD = _gauge("job_world_ranks", "ranks of the job, as its launcher states", *JOB)
JOB_STEP = _gauge("job_step_seconds", "median length of a step in the newest window", *JOB)
JOB_LAST_STEP = _gauge("job_last_step", "last step of the newest window", *JOB)
JOB_LOST = _gauge(
    "job_lost_ratio",
    "share of the newest window that was lost and that no single rank is named for, as where ranks are late by turns",
    *JOB,
)
JOB_GPU_LOST = _gauge(
    "job_gpu_lost_seconds", "GPU time that was lost in the newest window: to ranks that are named, and otherwise", *JOB
)
JOB_WINDOW_LENGTH = _gauge("job_window_seconds", "length of the newest window", *JOB)
JOB_WINDOW_END = _gauge(
    "job_window_end_timestamp_seconds", "end of the newest window, by the clock of the job's hosts", *JOB
)
JOB_STANDSTILL = _gauge("job_standstill_seconds", "time since the job last moved; only while it stands still", *JOB)
JOB_AWAITED = _gauge("job_awaited_ranks", "ranks that the job waits for; only while it stands still", *JOB)
REST_RANKS = _gauge("job_rest_ranks", "ranks of the newest window that have no series of their own", *JOB)
REST_GPU_LOST = _gauge(
    "job_rest_gpu_lost_seconds", "drumline_rank_gpu_lost_seconds summed over those that have no series", *JOB
)
REST_LATENESS = _gauge(
    "job_rest_lateness_seconds", "drumline_rank_lateness_seconds summed over those that have no series", *JOB
)
RANK_STATE = _gauge(
    "rank_state", "1 for the state of the rank's alarm; hung or standing where the job waits for it", *RANK, *VERDICT
)
RANK_SEVERITY = _gauge(
    "rank_severity", "severity of the newest window by itself, -1 to 3 as of a job; the state has the alarm", *RANK
)
RANK_LOST = _gauge("rank_lost_ratio", "share of the job's time that it lost to the rank, 0 to 1", *RANK)
RANK_LATENESS = _gauge("rank_lateness_seconds", "mean lateness of the rank in a step of the newest window", *RANK)
RANK_GPU_LOST = _gauge("rank_gpu_lost_seconds", "GPU time that the other ranks lost to it in the newest window", *RANK)
GPU_INFO = _gauge(
    "gpu_info", "1; joins metrics with the label UUID, such as DCGM's, with the rank that uses the GPU",
    "UUID", *JOB, "rank", "host", "namespace", "pod",
)  # fmt: skip
GPU_LOST = _gauge("gpu_lost", "1 while the GPU does not answer", "UUID", "host", *JOB)
