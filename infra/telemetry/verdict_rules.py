"""Recording and alert rules for Prometheus on what `drumline exporter` serves about jobs, beside Grafana's rules.

infra/prometheus/verdicts.yml has them for Prometheus, docs/reference/metrics.md for people (`make docs`).
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline.infra.telemetry.prometheus_rules import PrometheusRule


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """Describes a series that Prometheus computes. `expr` is PromQL; meaning: a sentence."""

    name: str
    expr: str
    meaning: str


RECORDING: tuple[RecordingRule, ...] = (
    RecordingRule(
        "job_run:drumline_rank_gpu_lost_seconds:sum",
        "sum by (job, run) (drumline_rank_gpu_lost_seconds) + on (job, run) drumline_job_rest_gpu_lost_seconds",
        "GPU time that all late ranks of a job cost in its newest window; the rest is in it.",
    ),
    RecordingRule(
        "job_run:drumline_gpu_lost:ratio",
        "drumline_job_gpu_lost_seconds / on (job, run) (drumline_job_window_seconds * on (job, run) "
        "(drumline_job_world_ranks > 0)) and on (job, run) drumline_job_window_seconds > 0",
        "Share of the GPU time of a job that was lost in its newest window.",
    ),
    RecordingRule(
        "job_run:drumline_verdict_age_seconds",
        "time() - drumline_job_window_end_timestamp_seconds",
        "Time since the end of a job's newest window.",
    ),
)
_OPEN = "Open the job on drumline's web page, or run `drumline explain`."
RULES: tuple[PrometheusRule, ...] = (
    PrometheusRule(
        "DrumlineJobHung", 'drumline_job_state{state="hung"} == 1', "critical",
        "a job stands still while ranks wait; the label cause has the reason",
        "`drumline top` names the ranks that it waits for.",
        "Do what the page of the cause states; end the job if it cannot go on.",
    ),
    PrometheusRule(
        "DrumlineRankLate", 'drumline_rank_state{state="critical"} == 1', "critical",
        "a rank costs its job 20% of its time or more, in several windows",
        _OPEN, "Do what the page of the cause states, on the host of the label.",
    ),
    PrometheusRule(
        "DrumlineRankSlow", 'drumline_rank_state{state="warning"} == 1', "warning",
        "a rank costs its job 4% of its time or more, in several windows",
        _OPEN, "Do what the page of the cause states, on the host of the label.", 300,
    ),
    PrometheusRule(
        "DrumlineJobNotEvaluated", 'drumline_job_state{state="insufficient_data"} == 1', "warning",
        "windows of a job have no verdict; the labels cause and detail have the reason",
        "`drumline sql coverage` has the windows and the reasons.",
        "Do what the page of the reason states.", 600,
    ),
    PrometheusRule(
        "DrumlineGpuNotAnswering", "drumline_gpu_lost == 1", "critical",
        "a GPU does not answer; its readings are missing",
        "`nvidia-smi -L` on the host, and its kernel log.", "Drain the host and reset it.",
    ),
    PrometheusRule(
        "DrumlineSeriesLeftOut", 'drumline_exporter_unlisted_units{kind="job"} > 0', "warning",
        "jobs have no series, since there are too many",
        "`drumline_jobs` counts all of them by state.",
        "Raise `--series` of the exporter, or lower `--worst`.", 600,
    ),
)  # fmt: skip
