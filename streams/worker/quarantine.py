"""Report a unit that went into quarantine: a log entry, a metric, and a row of gpu.straggler.v1 about its job."""

from __future__ import annotations

import structlog

from drumline.infra.guidance.causes import INSUFFICIENT_DATA
from drumline.infra.runtime.stage import Incident
from drumline.infra.telemetry import metrics
from drumline.schemas.batch import Batch
from drumline.schemas.keys import derived_process_id
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import INSUFFICIENT
from drumline.streams.stragglers.alarm import NO_DATA, Alarm
from drumline.streams.stragglers.analysis.cause import Cause
from drumline.streams.stragglers.analysis.verdict import WindowVerdict
from drumline.streams.stragglers.analysis.verdict_rows import WHOLE_JOB, RankVerdict
from drumline.streams.stragglers.window_verdict import verdict_batch

log = structlog.get_logger()
#: Detail of insufficient_data: the job, or a part of it, is in quarantine.
QUARANTINE = "quarantine"


def report(stage: str, partition: int, incident: Incident) -> Batch:
    """Log and count an incident; return the row to publish: rank -1, no window of steps, evidence with the stage."""
    metrics.STREAM_QUARANTINED.labels(stage, incident.reason).inc()
    log.error(
        "quarantine: state dropped, and rows until its end; other jobs continue",
        stage=stage,
        partition=partition,
        job=incident.job[:200],
        run=incident.run[:200],
        reason=incident.reason,
        seconds=round((incident.until_ns - incident.at_ns) / 1e9),
        exc_info=incident.error,
    )
    now_ns = incident.at_ns
    # Not among the sequences of the job's verdicts: this row would be a second producer's there.
    source = (stage, str(partition), repr(incident.unit), str(now_ns))
    evidence = {"stage": stage, "reason": incident.reason, "error": type(incident.error).__name__}
    row = RankVerdict(WHOLE_JOB, INSUFFICIENT, Cause(INSUFFICIENT_DATA, QUARANTINE), evidence=evidence)
    envelope = {
        "job": incident.job,
        "run": incident.run,
        "process_id": derived_process_id(Topic.STRAGGLER, "quarantine", *source),
        "sequence": 0,
        "revision": 0,
        "base_time_ns": now_ns,
        "sent_ns": now_ns,
        "first_step": -1,
        "last_step": -1,
        "window_start_ns": now_ns,
        "window_end_ns": now_ns,
    }
    verdict = WindowVerdict((row,), 0, 0, 0, 0, {})
    return verdict_batch(verdict, {WHOLE_JOB: Alarm(NO_DATA)}, {}, {}, lambda step: (step, step), envelope)
