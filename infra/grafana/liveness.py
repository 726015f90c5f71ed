"""Active jobs and silent ranks, as alert rules and dashboards define them: SQL with tokens.

A live process reports every 10 s what is recorded of it, and why (`processes.policy`), also while nothing is. A replay
publishes the identity of its processes once, and has no policy.
"""

from __future__ import annotations

from drumline.infra.grafana.thresholds import ACTIVE_S, VERDICT_S, VERDICT_WINDOWS

#: Where a process runs: namespace, pod and container, or the Slurm job.
PLACE = (
    "if(k8s_pod != '', arrayStringConcat("
    "arrayFilter(part -> part != '', [k8s_namespace, k8s_pod, k8s_container]), '/'), slurm_job)"
)
#: The same of the newest process of a group of `processes AS p`; `none` without one.
_NEWEST_PLACE = f"argMax(if({PLACE} = '', 'none', {PLACE}), p.published)"
#: For groups by what a table is ordered by: half of the time, or less.
IN_ORDER = "SETTINGS optimize_aggregation_in_order = 1"
#: What processes report last: by themselves, and their agent of one that was killed.
END, KILLED = "off: end of the process", "off: the process exited"
#: Runs whose producers published a record in the minutes before the end of the range. Results do not count: a worker
#: that restarts publishes those of jobs that have ended.
_RECENT = f"""records_per_minute
    WHERE minute >= toStartOfMinute($__toTime) - INTERVAL {ACTIVE_S} SECOND AND minute <= $__toTime
        AND run != '' AND @produced AND last_published > $__toTime_ms - INTERVAL {ACTIVE_S} SECOND"""
#: A run is active as long as one of its processes has not reported its end; those of a replay do not. A helper's end,
#: or that of a process which was started again, is not the rank's.
_ACTIVE = f"""{_RECENT}
        AND (job, run) NOT IN (
            SELECT job, run FROM (
                SELECT job, run, process_id, argMax(policy, p.published) AS reported FROM processes AS p
                WHERE (job, run) IN (SELECT DISTINCT job, run FROM {_RECENT})
                    AND p.published <= $__toTime_ms GROUP BY job, run, process_id
            ) GROUP BY job, run HAVING min(startsWith(reported, '{END}') OR startsWith(reported, '{KILLED}')) = 1)"""
#: DISTINCT reads in the table's order, which GROUP BY does not.
ACTIVE_RUNS = f"SELECT DISTINCT job, run FROM {_ACTIVE}"
#: The same with the time of their last record.
LAST_RECORDS = f"SELECT job, run, max(last_published) AS last_record FROM {_ACTIVE} GROUP BY job, run"
#: Rows of `stragglers` whose verdicts are still in force: windows of slow steps last long.
IN_FORCE = (
    f"window_end > $__toTime_ms - toIntervalSecond(greatest({VERDICT_S}, {VERDICT_WINDOWS} * "
    "dateDiff('second', window_start, window_end)))"
)
#: Newest attempt of each run: verdicts of an earlier one are no news.
NEWEST_ATTEMPTS = """
    SELECT job, run, max(attempt_start) FROM evaluations WHERE begun <= $__toTime_ms GROUP BY job, run
"""
#: Ranks of active runs: place and last report of their newest process, and the seconds for which the job continued
#: after it. Ranks whose process reported its end, and replays, which report once, are left out.
RANKS = f"""
    SELECT job, run, rank, host, pod, reported, last_report,
        toFloat64(greatest(dateDiff('second', last_report, last_record), 0)) AS silent_s
    FROM (
        SELECT job, run, rank, argMax(host, p.published) AS host, {_NEWEST_PLACE} AS pod,
            argMax(policy, p.published) AS reported, max(p.published) AS last_report
        FROM processes AS p WHERE (job, run) IN ({ACTIVE_RUNS}) GROUP BY job, run, rank
        HAVING reported != '' AND NOT startsWith(reported, '{END}')
            AND last_report >= $__fromTime_ms
    ) AS reporting INNER JOIN ({LAST_RECORDS}) AS runs USING (job, run)
"""
#: When the last record of any producer was published, while a process that did not report its end was recorded until
#: then; no row otherwise.
LAST_RECORD = f"""
    SELECT max(last_published) AS last_record FROM records_per_minute WHERE @minute AND @produced
    HAVING last_record <= (
        SELECT max(last_report) + INTERVAL {ACTIVE_S} SECOND FROM (
            SELECT argMax(policy, p.published) AS reported, max(p.published) AS last_report
            FROM processes AS p WHERE @published GROUP BY job, run, rank
            HAVING reported != '' AND NOT startsWith(reported, '{END}')
        )
    )
"""
#: Ranks that active jobs are hung for at the end of the range; rank -1 = the job as a whole.
HUNG_RANKS = f"""
    SELECT h.job AS job, h.run AS run, h.rank AS rank FROM hangs AS h
    WHERE h.state = 'hung' AND (h.job, h.run) IN ({ACTIVE_RUNS})
        AND (h.job, h.run, (h.attempt_start, h.time, h.episode, h.revision)) IN (
            SELECT n.job, n.run, max((n.attempt_start, n.time, n.episode, n.revision))
            FROM hangs AS n WHERE n.time <= $__toTime_ms GROUP BY n.job, n.run)
"""
#: Runs with a record in the range.
RECORDED_RUNS = "SELECT DISTINCT job, run FROM records_per_minute WHERE @minute AND run != ''"


def places(keys: str, number: str = "", runs: str = "") -> str:
    """Return SQL of GPU and pod (or Slurm job, or `none`) by `keys`, of the newest process; `number`: for `rank`.

    `runs`: those that are needed, where they are cheaper to find than all processes to read.
    """
    named = keys.replace("rank", f"rank AS {number}") if number else keys
    return f"""
    SELECT {named}, argMax(concat('GPU ', toString(gpu_index), ' ', gpu_uuid), p.published) AS gpu,
        {_NEWEST_PLACE} AS pod
    FROM processes AS p{f" WHERE (job, run) IN ({runs})" if runs else ""} GROUP BY {keys}
    """


def owners(runs: str, keys: str = "job, run") -> str:
    """Return SQL of team, user and namespace by run (or `keys`); `drumline run --label team=... --label user=...`."""
    return f"""
    SELECT {keys}, max(labels['team']) AS team, max(labels['user']) AS user, max(k8s_namespace) AS namespace
    FROM processes WHERE (job, run) IN ({runs}) GROUP BY {keys}
    """


def not_recorded(runs: str) -> str:
    """Return SQL of the runs among `runs` of which no rank is recorded now: policy off, or another profiler."""
    return f"""
    SELECT job, run FROM processes WHERE (job, run) IN ({runs}) GROUP BY job, run
    HAVING countIf(policy = '' OR (startsWith(policy, 'on: ')
        AND published > $__toTime_ms - INTERVAL {ACTIVE_S} SECOND)) = 0
    """
