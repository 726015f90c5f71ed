"""Alert rules on inference engines."""

from __future__ import annotations

from drumline.infra.grafana.alerts.rule import Group, Rule, Values, of_active
from drumline.infra.grafana.thresholds import IDLE_WITH_QUEUE, TTFT_S
from drumline.infra.guidance.entry import JOB

_JOB = {"job": "job", "run": "run"}
_FIRST = """
    SELECT job, run, quantileExactInclusive(0.95)(assumeNotNull(ttft_ns)) / 1e9 AS value FROM requests
    WHERE $__timeFilter_ms(start) AND ttft_ns IS NOT NULL GROUP BY job, run HAVING count() >= 20
"""
_IDLE = """
    SELECT job, run, sum(idle_with_queue_ns) / greatest(sum(work_ns), 1) AS value FROM serving_minutes
    WHERE $__timeFilter(minute) GROUP BY job, run HAVING sum(work_ns) >= 30000000000
"""
LATE_TOKENS = Rule(
    "drumline-first-token", "First tokens late", "warning",
    (of_active(_FIRST), Values(_FIRST, "SECONDS")),
    "gt", (TTFT_S,), 300,
    "{{ $labels.job }}: one request in 20 waits {{ humanizeDuration $values.SECONDS.Value }} for its first token",
    "Of the requests of the last five minutes, 95% got their first token within "
    "{{ humanizeDuration $values.SECONDS.Value }}. Run {{ $labels.run }}.",
    "`drumline sql serving-requests --job JOB` splits the wait into queue and prompt; `drumline sql "
    "serving-verdicts --job JOB` "
    "names what holds the engine up.",
    "A long queue: add replicas, or let fewer requests in. Long prompts: chunk them. Preemptions: fewer "
    "sequences, or more "
    "memory for the KV cache.",
    "A person leaves a page that does not answer within about ten seconds; half of that is for the way to the "
    "engine. Of 20 "
    "requests or more.",
    ("drumline-serving", "ttft"), _JOB, for_s=120,
)  # fmt: skip
IDLE_QUEUE = Rule(
    "drumline-idle-with-queue", "GPU idle while requests wait", "warning",
    (of_active(_IDLE), Values(_IDLE, "SHARE")),
    "gt", (IDLE_WITH_QUEUE,), 300,
    "{{ $labels.job }}: the GPU has nothing to do for {{ humanizePercentage $values.SHARE.Value }} of the time, "
    "with a queue",
    "Requests are in the queue of the engine, and between its iterations the GPU waits for the host. Run {{ "
    "$labels.run }}.",
    "`drumline sql serving-verdicts --job JOB`: is it the scheduler, or between iterations? `drumline sql "
    "scopes` and Python "
    "stacks have the host's part.",
    "Asynchronous scheduling, fewer logits processors, tokenizing in other processes; larger batches.",
    "Half of what the verdict on a starved engine begins at, since requests pay for it with their wait. In 30 s "
    "of work or "
    "more.",
    ("drumline-serving", "idle"), _JOB, for_s=120,
)  # fmt: skip
INFERENCE = Group("drumline-inference", 60, JOB, (LATE_TOKENS, IDLE_QUEUE))
