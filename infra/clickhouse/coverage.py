"""SQL of what is seen of a job: one attempt; and what is not: windows without verdicts (view `coverage`), and ranks."""

from __future__ import annotations

from drumline.schemas.topics import Topic

#: Share of windows without verdicts above which a job counts as one that cannot be evaluated, and the windows that this
#: takes: a checkpoint or a rank that joins leaves one of ten without.
MOST_MISSING, LEAST_WINDOWS = 0.1, 10
#: Windows count for so long, and at least so many of their lengths; s. Verdicts are in force for as long.
RECENT_S = 900
#: Time without a known step, and steps a rank without a window, after which that is stated; s. A period of calls is
#: found within 20 s, and a worker may be behind for a minute.
NO_STEPS_S, NO_WINDOW_S, NO_WINDOW_STEPS = 300, 120, 100

#: The view `coverage` (migration 0006) as conditions on `stragglers`: its rows, and two of its columns.
WHOLE, EVALUATED = "rank = -1 AND detail NOT IN ('stalled', 'silent')", "severity >= 'ok'"
REASON = f"if({EVALUATED}, '', toString(detail))"

#: Why most of a group of windows AS c were not evaluated, "" = all were. A past that is too short is a reason only
#: where it is the only one: it ends by itself.
MAIN_REASON = (
    "if(countIf(NOT c.evaluated AND c.reason != 'no_past') > 0, "
    "toString(topKIf(1)(c.reason, NOT c.evaluated AND c.reason != 'no_past')[1]), "
    "if(countIf(NOT c.evaluated) > 0, 'no_past', ''))"
)

#: World size up to which ranks are compared one by one: a sender may claim any.
MOST_WORLD = 65_536
#: Ranks that are listed; all are counted.
MOST_LISTED = 1_000

_PROMISED = f"range(toUInt32(least(greatest(argMaxIf(world_size, start, rank >= 0), 0), {MOST_WORLD})))"
_BITMAP = f"bitmapAndnot(bitmapBuild({_PROMISED}), groupBitmapStateIf(toUInt32(greatest(rank, 0)), rank >= 0))"

#: Columns of a group of `processes AS p` of one run. `world`: the size that its newest process states, so that a job
#: that shrank lacks nothing. `unreported_ranks`: how many ranks never reported; `unreported`: the first of them.
UNREPORTED = f"""argMaxIf(world_size, start, rank >= 0) AS world,
    toInt64(bitmapCardinality({_BITMAP})) AS unreported_ranks,
    arraySlice(bitmapToArray({_BITMAP}), 1, {MOST_LISTED}) AS unreported"""


def of_attempt(until: str = "") -> str:
    """Return a condition on `start`: the newest attempt of `job`, `run` that began by `until`, or of all.

    A run with one attempt has no limit: hosts' clocks may be minutes apart.
    """
    begun = f"AND a.attempt_start <= {until}" if until else ""
    return f"""start >= (
        SELECT if(count() > 1, max(a.attempt_start), toDateTime64(0, 9, 'UTC')) FROM attempts AS a
        WHERE a.job = {{job:String}} AND a.run = {{run:String}} {begun}
    )"""


def recent(runs: str, now: str, minutes: str = "1") -> str:
    """Return SQL with a row a run: job, run, `windows`, `evaluated` of them, and `reason` of most others ("" = none).

    Without windows the reason is no_steps or no_verdict, or "" where that may still be normal. `runs`: condition on job
    and run. `now`: a DateTime64 of ClickHouse, the end of the time that counts. `minutes`: condition on `minute` of the
    records that are counted.
    """
    return f"""
SELECT job, run, if(w.evaluated > 0, w.measured, w.seen) AS windows, w.evaluated AS evaluated,
    multiIf(windows > 0, if(evaluated < windows, w.why, ''), ranks < 2, '',
        steps = 0, if(communicates AND span_s >= {NO_STEPS_S}, 'no_steps', ''),
        steps_lately >= {NO_WINDOW_STEPS} * ranks AND span_s >= {NO_WINDOW_S}, 'no_verdict', '') AS reason
FROM (
    SELECT job, run, uniqExactIfMerge(r.ranks) AS ranks, sumIf(r.rows, topic = '{Topic.STEP}') AS steps,
        sumIf(r.rows, topic = '{Topic.STEP}' AND minute > {now} - INTERVAL {RECENT_S} SECOND) AS steps_lately,
        sumIf(r.rows, topic IN ('{Topic.COLLECTIVE}', '{Topic.PROGRESS}')) > 0 AS communicates,
        dateDiff('second', min(minute), max(r.last_published)) AS span_s
    FROM records_per_minute AS r WHERE {runs} AND {minutes} GROUP BY job, run
) AS recorded LEFT JOIN (
    SELECT job, run, count() AS seen, countIf(c.evaluated OR c.reason != 'no_past') AS measured,
        countIf(c.evaluated) AS evaluated, {MAIN_REASON} AS why
    FROM coverage AS c
    WHERE {runs} AND window_end > {now} - toIntervalSecond(greatest(
        {RECENT_S}, {LEAST_WINDOWS} * dateDiff('second', window_start, window_end)))
    GROUP BY job, run
) AS w USING (job, run)
"""


def is_too_little(windows: int, evaluated: int, reason: str) -> bool:
    """Return whether a job counts as one that cannot be evaluated. `reason`: as `recent` has it."""
    if not windows:
        return reason != ""
    return windows >= LEAST_WINDOWS and windows - evaluated > MOST_MISSING * windows
