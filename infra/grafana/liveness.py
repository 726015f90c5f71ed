"""Who is heard: what rules and dashboards mean by a job that runs and a rank that is silent. SQL with tokens.

A live process says every 10 s what is recorded of it, and why (`processes.policy`), also while nothing is. A replay
says once who its processes are, and has no policy.
"""

from __future__ import annotations

from drumline.infra.grafana.thresholds import ACTIVE_S, VERDICT_S, VERDICT_WINDOWS

#: A run is heard at the end of the range: its producers published something in the minutes before. (Results do not
#: count: a worker that starts again publishes those of jobs that are over.)
IS_ACTIVE = f"last_published > $__toTime_ms - INTERVAL {ACTIVE_S} SECOND"
ACTIVE_RUNS = f"""
    SELECT job, run FROM records_per_minute
    WHERE minute >= toStartOfMinute($__toTime) - INTERVAL {ACTIVE_S} SECOND AND minute <= $__toTime
        AND run != '' AND @produced AND {IS_ACTIVE} GROUP BY job, run
"""
#: Verdicts that still count, of `stragglers`: windows of slow steps last long.
IN_FORCE = (
    f"window_end > $__toTime_ms - toIntervalSecond(greatest({VERDICT_S}, {VERDICT_WINDOWS} * "
    "dateDiff('second', window_start, window_end)))"
)
#: Heard runs of which no rank is recorded all the time: policy off, another profiler, or windows with pauses (duty), in
#: which a step need not fit.
NOT_RECORDED = f"""
    SELECT job, run FROM processes WHERE (job, run) IN ({ACTIVE_RUNS}) GROUP BY job, run
    HAVING countIf(policy = '' OR (startsWith(policy, 'on: ') AND NOT startsWith(policy, 'on: duty')
        AND published > $__toTime_ms - INTERVAL {ACTIVE_S} SECOND)) = 0
"""
#: Ranks of heard runs, when their newest process last spoke, and the seconds that the job has gone on without it. Left
#: out: those whose process said that it ends, and replays, whose processes speak once.
RANKS = f"""
    SELECT job, run, rank, host, said, spoke,
        toFloat64(greatest(dateDiff('second', spoke, heard), 0)) AS silent_s
    FROM (
        SELECT job, run, rank, argMax(host, p.published) AS host, argMax(policy, p.published) AS said,
            max(p.published) AS spoke
        FROM processes AS p WHERE (job, run) IN ({ACTIVE_RUNS}) GROUP BY job, run, rank
        HAVING said != '' AND NOT startsWith(said, 'off: end of the process') AND spoke >= $__fromTime_ms
    ) AS speaking INNER JOIN (
        SELECT job, run, max(last_published) AS heard FROM records_per_minute
        WHERE minute >= toStartOfMinute($__toTime) - INTERVAL {ACTIVE_S} SECOND AND minute <= $__toTime
            AND run != '' AND @produced GROUP BY job, run
    ) AS runs USING (job, run)
"""
