"""Limits that panels draw and alert rules apply: one constant for both.

Limits on verdicts are those of the stream processor (streams/core/thresholds.py). Programs do not import each other, so
a test keeps them equal.
"""

from __future__ import annotations

#: Share of a job's time that one rank may cost: suspect, warning, critical.
SUSPECT, WARNING, CRITICAL = 0.02, 0.04, 0.20
SHARE = ((SUSPECT, "blue"), (WARNING, "orange"), (CRITICAL, "red"))
#: Levels of a verdict in force, as numbers (see `@level`).
LEVEL_WARNING, LEVEL_CRITICAL = 2, 3
#: That of a rank that its job waits for, and of the job: above every verdict.
LEVEL_HUNG = 4
LEVEL = ((1, "blue"), (LEVEL_WARNING, "orange"), (LEVEL_CRITICAL, "red"))

#: Time for which a job is active after the last record of its producers, which publish at least every 10 s, where its
#: processes reported no end; s. Storing may be behind for as long as "Results lag" needs to page somebody.
ACTIVE_S = 300
#: A verdict is in force for so many lengths of its window of steps, at least so many seconds, and while its job is
#: active. A level is cleared after three windows without it.
VERDICT_WINDOWS, VERDICT_S = 4, 900
#: A job is stalled if it finishes no step for so many times the longest of its last hour of steps, so many times the
#: longest time from step to step in that hour (evaluations, checkpoints), and at least so long; s. PyTorch ends a job
#: whose NCCL collective hangs after 10 minutes (torch.distributed's default timeout); half of that is before it.
STALLED_STEPS, STALLED_PAUSES, STALLED_S = 5.0, 2.0, 300.0
#: Time for which a job stands still until it is hung (DRUMLINE_STREAM__HUNG_S); s.
HUNG_S = 120.0
#: A standstill so long before the last step, by another clock, may still be why no further one comes; s. One of which
#: ranks are not hung after PyTorch's 10 minutes (above), whatever that setting is, is not known any more.
HUNG_MARGIN_S, STANDING_S = 60.0, 600.0
#: Bus bandwidth against the same collectives' before. The verdict "slow link" asks for 1.3 times the time.
BANDWIDTH_RATIO = 1 / 1.3

#: GPU slowed down in more than so many of the last minutes; minutes. A moment's heat is in two at most.
THROTTLED_MINUTES, THROTTLED_OF = 2.0, 5
#: degrees C; data centre GPUs slow down somewhere above 85.
TEMPERATURE = ((80.0, "orange"), (87.0, "red"))

#: Share of a rank's time spent in copies from or to pageable memory.
PAGEABLE_SHARE = WARNING
PAGEABLE = ((PAGEABLE_SHARE, "orange"), (CRITICAL, "red"))

#: GPU idle while a job holds it: utilisation in percent at most this, for so long; minutes.
IDLE_PERCENT, IDLE_MINUTES = 5.0, 15
IDLE = ((IDLE_PERCENT, "green"),)

#: Raw rows that are newer than the newest results made of them; s. Windows are 10 s, steps a window up to some minutes.
LAG_S = 120.0
LAG = ((60.0, "orange"), (LAG_S, "red"))
#: Time without a report of a process while its job is active; s. Each process reports every 10 s.
SILENT_S = 60.0
SILENT = ((SILENT_S, "red"),)
#: Rows of a topic that a job may lose in ten minutes.
DROPPED_ROWS = 0.0
#: Errors of a link in 10 minutes: 40 times what a bit error rate of 1e-15 makes at 400 Gbit/s (1.4 an hour).
LINK_ERRORS = 10.0
#: Any lost row, dead letter, XID or uncorrected ECC error matters.
ANY = ((1.0, "red"),)
#: GPU time or money that was lost: any is worth a colour.
LOST = ((1e-9, "orange"),)

#: Time to the first token that 95% of requests stay below; s. Whom a page answers leaves after about ten (Nielsen,
#: Response Times: The Three Important Limits); half of that is for network and tokenizer.
TTFT_S = 5.0
TTFT = ((TTFT_S, "red"),)
#: Share of the time with requests in which the GPU has nothing to do while requests are in the queue. The verdict on
#: a starved engine begins at twice that, with and without a queue.
IDLE_WITH_QUEUE = 0.2
IDLE_SHARE = ((IDLE_WITH_QUEUE, "red"),)
