"""Queries of the report. Every value is a parameter of the server; names and sorting are the server's too.

All but RUNS take `job`, `run` and `since`, `until` (text of a DateTime64(9, 'UTC')): rows that ended before `since` or
began after `until` are left out. Plots get a bounded number of bins, whatever the job's length and size.
"""

from __future__ import annotations

from drumline.infra.clickhouse.coverage import EVALUATED, MAIN_REASON, REASON, UNREPORTED, WHOLE, of_attempt
from drumline.infra.clickhouse.occupancy import SHAPE, SHAPED, achieved, sm_of_job, with_occupancy
from drumline.schemas.topics import TOPICS, Topic

_RESULTS = ", ".join(f"'{spec.topic}'" for spec in TOPICS if spec.derived)
# Last record of the producers of each run; results of a stream worker do not show that a run is active.
LAST_RECORDS = f"""SELECT job, run, max(r.last_published) AS last_record FROM records_per_minute AS r
WHERE topic NOT IN ({_RESULTS}) GROUP BY job, run"""

RUNS = f"""
SELECT run, toString(j.started) AS started, toString(j.ended) AS ended, ranks, hosts, kernels, memcpys, collectives,
       steps, dropped_rows, toString(h.last_record) AS last_record, e.evaluations AS evaluations
FROM jobs AS j INNER JOIN ({LAST_RECORDS}) AS h USING (job, run)
LEFT JOIN (
    SELECT job, run, uniqExact(evaluation) AS evaluations FROM evaluations WHERE job = {{job:String}} GROUP BY job, run
) AS e USING (job, run)
WHERE job = {{job:String}}
ORDER BY h.last_record DESC LIMIT 50
"""

RANKS = "SELECT DISTINCT rank FROM processes WHERE job = {job:String} AND run = {run:String} ORDER BY rank LIMIT 65536"

# Labels of `drumline run --label NAME=VALUE`, ranks that never reported, and attempts that have verdicts, in order.
LABELS = f"""
SELECT any(labels) AS labels, {UNREPORTED},
       (SELECT groupArray((attempt, toString(attempt_start), a.first_step, a.last_step)) FROM (
            SELECT * FROM attempts WHERE job = {{job:String}} AND run = {{run:String}} ORDER BY attempt
        ) AS a) AS attempts
FROM processes WHERE job = {{job:String}} AND run = {{run:String}}
"""

# The newest process of each rank.
PIDS = """
SELECT rank, argMax(pid, published) AS pid FROM processes
WHERE job = {job:String} AND run = {run:String} AND rank IN {ranks:Array(Int32)} GROUP BY rank
"""

JOBS = f"SELECT job FROM ({LAST_RECORDS}) GROUP BY job ORDER BY max(last_record) DESC LIMIT 50"

_UTC = "DateTime64(9, 'UTC')"
# Length of the time, and whether it overlaps the run.
EXTENT = f"""
SELECT dateDiff('nanosecond', {{since:{_UTC}}}, {{until:{_UTC}}}) AS ns,
       {{since:{_UTC}}} <= {{ended:{_UTC}}} AND {{until:{_UTC}}} >= {{started:{_UTC}}} AS overlaps
"""

SCOPE = "job = {job:String} AND run = {run:String}"
_TIME = "start <= {until:DateTime64(9, 'UTC')} AND end_time >= {since:DateTime64(9, 'UTC')}"
_WINDOW = "window_start <= {until:DateTime64(9, 'UTC')} AND window_end >= {since:DateTime64(9, 'UTC')}"
# Rollups have whole minutes only: those that the time touches.
MINUTE = (
    "minute BETWEEN toStartOfMinute({since:DateTime64(9, 'UTC')}) AND toStartOfMinute({until:DateTime64(9, 'UTC')})"
)
# A step's time is that between two ends of its last collective on the GPU; the host may be steps ahead. Steps are of
# one attempt: their numbers repeat.
_ATTEMPT = of_attempt("{until:DateTime64(9, 'UTC')}")
_KNOWN = f"{SCOPE} AND {_TIME} AND {_ATTEMPT} AND skipped = 0 AND gpu_duration_ns > 0"
STEPS_EXTENT = f"""
SELECT min(step) AS first, max(step) AS last, uniqExact(step) AS steps,
       quantileExactInclusive(0.5)(gpu_duration_ns) / 1e6 AS median_ms,
       quantileExactInclusive(0.95)(gpu_duration_ns) / 1e6 AS p95_ms,
       groupUniqArray(4)(steps_from) AS steps_from
FROM steps WHERE {_KNOWN}
"""

STEPS = f"""
SELECT intDiv(step - {{first:Int64}}, {{width:Int64}}) * {{width:Int64}} + {{first:Int64}} AS bin,
       quantileExactInclusive(0.5)(gpu_duration_ns) / 1e6 AS median_ms, min(gpu_duration_ns) / 1e6 AS shortest_ms,
       max(gpu_duration_ns) / 1e6 AS longest_ms, toUnixTimestamp64Milli(min(start)) AS begin_ms,
       toUnixTimestamp64Milli(max(end_time)) + 1 AS end_ms
FROM steps WHERE {_KNOWN} GROUP BY bin ORDER BY bin
"""

# The same of a run with more steps than are read one by one: from whole seconds in which steps began, so that quantiles
# are within 1 %. Steps of a few ranks number the seconds.
_OF_SECONDS = f"""
FROM steps_per_second WHERE {SCOPE} AND known_steps > 0
    AND second BETWEEN toStartOfSecond({{since:{_UTC}}}) AND {{until:{_UTC}}}
"""
_NUMBERS = f"FROM steps WHERE {_KNOWN} AND rank IN {{ranks:Array(Int32)}}"
_QUANTILES = "quantilesDDIfMerge(0.01, 0.5, 0.95, 0.99)(durations)"
# Of other ranks there may be no steps, or only those of a part of the run.
RANKS_WITH_MOST_STEPS = f"""
SELECT rank FROM steps WHERE {SCOPE} GROUP BY rank ORDER BY countIf(skipped = 0) DESC, rank LIMIT 16
"""
SECONDS_EXTENT = f"""
SELECT n.*, q.of_all[1] / 1e6 AS median_ms, q.of_all[2] / 1e6 AS p95_ms
FROM (SELECT min(step) AS first, max(step) AS last, uniqExact(step) AS steps,
             groupUniqArray(4)(steps_from) AS steps_from {_NUMBERS}) AS n
CROSS JOIN (SELECT {_QUANTILES} AS of_all {_OF_SECONDS}) AS q
"""
SECONDS = f"""
SELECT intDiv(greatest(n.step, {{first:Int64}}) - {{first:Int64}}, {{width:Int64}}) * {{width:Int64}}
           + {{first:Int64}} AS bin,
       {_QUANTILES}[1] / 1e6 AS median_ms, min(min_ns) / 1e6 AS shortest_ms, max(max_ns) / 1e6 AS longest_ms,
       1000 * toInt64(toUnixTimestamp(min(s.second))) AS begin_ms,
       1000 * (toInt64(toUnixTimestamp(max(s.second))) + 1) AS end_ms
FROM (SELECT job, second, durations, min_ns, max_ns {_OF_SECONDS}) AS s
ASOF LEFT JOIN (
    SELECT job, toDateTime(start, 'UTC') AS second, toInt64(avg(step)) AS step {_NUMBERS} GROUP BY job, second
) AS n ON n.job = s.job AND n.second <= s.second
GROUP BY bin ORDER BY bin
"""

# Windows of the time: all, those with enough data, their length, why most of the others have none; and what was stated
# last of a pipeline's stages. Read once: the view `coverage` has no evidence.
WINDOWS = f"""
SELECT count() AS windows, countIf(c.evaluated OR c.reason != 'no_past') AS measured,
       countIf(c.evaluated) AS evaluated, min(first_step) AS first, max(last_step) AS last,
       sumIf(steps_used * step_ns, c.evaluated) / 1e9 AS evaluated_s, sum(steps_skipped) AS steps_skipped,
       {MAIN_REASON} AS reason,
       arraySort(groupArrayIf(1000)((first_step, last_step), NOT c.evaluated)) AS unevaluated,
       argMaxIf(c.evidence_json, c.window_end, JSONHas(c.evidence_json, 'stages')) AS stages
FROM (
    SELECT first_step, last_step, window_end, steps_used, steps_skipped, step_ns, evidence_json,
           {EVALUATED} AS evaluated, {REASON} AS reason
    FROM stragglers WHERE {SCOPE} AND {_WINDOW} AND {WHOLE}
) AS c
"""


def episodes(where: str) -> str:
    """Return the query of episodes: the time for which one rank (or the job, -1) was named without a break.

    `state` is the highest level, which is what pages; one bad window alone is suspect. The cause, and then its detail,
    is the one that cost most in all windows together; confidence and evidence are those of its most expensive window.
    `where` selects rows of `stragglers`.
    """
    return f"""
SELECT rank, episode_first_step, attempt_start, anyLast(s.host) AS host, max(s.group) AS late_with,
       min(s.first_step) AS first_step, max(s.last_step) AS last_step, toString(min(window_start)) AS started,
       toString(max(window_end)) AS ended, count() AS windows,
       ['suspect', 'warning', 'critical'][max(indexOf(['suspect', 'warning', 'critical'], s.state))] AS state,
       argMax((s.cause, s.detail, s.confidence, evidence_json, s.steps_used),
              (s.by_cause, s.by_detail, s.lost_ns)) AS worst,
       worst.1 AS cause, worst.2 AS detail, worst.3 AS confidence, worst.4 AS evidence, worst.5 AS evidence_steps,
       sum(s.lost_ns) / 1e9 AS lost_s,
       sum(s.gpu_seconds_lost) AS gpu_seconds, max(s.lost_share) AS lost_share
FROM (
    SELECT *, sum(lost_ns) OVER (PARTITION BY rank, attempt_start, episode_first_step, cause) AS by_cause,
           sum(lost_ns) OVER (PARTITION BY rank, attempt_start, episode_first_step, cause, detail) AS by_detail
    FROM stragglers WHERE {where} AND severity >= 'suspect'
) AS s GROUP BY rank, attempt_start, episode_first_step"""


def first_episodes(where: str, order: str, most: str) -> str:
    """Return the query of the `most` episodes that are first by `order`. Evidence, most bytes, is read of no other."""
    keys = "rank, attempt_start, episode_first_step"
    chosen = f"""SELECT {keys} FROM stragglers WHERE {where} AND severity >= 'suspect'
GROUP BY {keys} ORDER BY {order}, {keys} LIMIT {most}"""
    return episodes(f"{where} AND ({keys}) IN ({chosen})")


def _most_expensive(where: str) -> str:
    chosen = first_episodes(f"{SCOPE} AND {_WINDOW}{where}", "sum(gpu_seconds_lost) DESC", str(MOST_EPISODES))
    return f"{chosen}\nORDER BY gpu_seconds DESC, rank, episode_first_step"


#: Episodes of a run that are read, the most expensive of all ranks or of one.
MOST_EPISODES = 200
EPISODES = _most_expensive("")
RANK_EPISODES = _most_expensive(" AND rank = {rank:Int32}")

# Times for which the job stood still: those that counted as hung, and one that lasts; `awaited`: the ranks that it
# waits for now, `state` whether that is a hang already. The run's last rows end as it begins.
HANGS = f"""
SELECT h.episode AS episode, maxIf(h.state = 'hung', h.rank = -1) AS hung,
       argMaxIf(h.state, h.revision, h.rank = -1) AS state, state IN ('standing', 'hung') AS lasts,
       argMaxIf(h.note, h.revision, h.rank = -1 AND h.note != '') AS note,
       argMaxIf(h.reason, h.revision, h.rank = -1 AND h.reason != '') AS reason, toString(min(h.start)) AS started,
       dateDiff('second', min(h.start), max(h.time)) AS seconds,
       groupArrayIf((h.rank, h.revision), h.rank >= 0) AS named, max(h.revision) AS newest,
       if(lasts, arraySort(arrayMap(r -> r.1, arrayFilter(r -> r.2 = newest, named))), []) AS awaited
FROM hangs AS h WHERE {SCOPE}
    AND subtractSeconds(h.start, 60) <= {{until:DateTime64(9, 'UTC')}}
    AND h.time >= {{since:DateTime64(9, 'UTC')}}
GROUP BY attempt_start, episode HAVING hung OR lasts ORDER BY attempt_start DESC, episode DESC LIMIT 5
"""


def _stacks(where: str) -> str:
    return f"""
SELECT h.rank AS rank, h.host AS host, h.verdict AS verdict, h.first_step AS first_step, h.last_step AS last_step,
       toString(h.sampled) AS sampled, h.position AS position, h.is_main AS is_main, h.thread AS thread,
       h.culprit_share AS culprit_share, h.peer_share AS peer_share, h.peers AS peers, h.at AS at, h.stack AS stack,
       h.finding AS finding, h.gil_wait_share AS gil_wait_share, h.gil_holder AS gil_holder
FROM hot_stacks AS h
WHERE {SCOPE}{where} AND subtractSeconds(h.window_start, 60) <= {{until:DateTime64(9, 'UTC')}}
    AND h.sampled >= {{since:DateTime64(9, 'UTC')}}
ORDER BY h.sampled DESC, rank, position LIMIT 100
"""


# Where the Python of named ranks was and that of their peers was not, newest sampling first.
STACKS = _stacks("")
RANK_STACKS = _stacks(" AND rank = {rank:Int32}")

# Cost by rank and cause: GPU-seconds add up over ranks and windows, lost time of several ranks does not.
COST = f"""
SELECT rank, anyLast(s.host) AS host, cause, sum(lost_ns) / 1e9 AS lost_s, sum(gpu_seconds_lost) AS gpu_seconds
FROM stragglers AS s WHERE {SCOPE} AND {_WINDOW} AND severity >= 'suspect'
GROUP BY rank, cause ORDER BY gpu_seconds DESC, rank, cause
"""

LATENESS = f"""
SELECT intDiv(first_step - {{first:Int64}}, {{width:Int64}}) * {{width:Int64}} + {{first:Int64}} AS bin, rank,
       sum(lateness_ns) / greatest(1, sum(steps_used)) / 1e6 AS late_ms
FROM stragglers WHERE {SCOPE} AND {_WINDOW} AND steps_used > 0 AND rank IN (
    SELECT rank FROM stragglers WHERE {SCOPE} AND {_WINDOW} AND rank >= 0
    GROUP BY rank ORDER BY sum(lateness_ns) DESC LIMIT {{ranks:UInt32}})
GROUP BY bin, rank ORDER BY rank, bin
"""

# The latest rank of each band of ranks, in its worst window of a bin.
BANDS = f"""
SELECT intDiv(first_step - {{first:Int64}}, {{width:Int64}}) * {{width:Int64}} + {{first:Int64}} AS bin,
       intDiv(rank, {{band:Int32}}) * {{band:Int32}} AS first_rank,
       max(lateness_ns / greatest(1, steps_used)) / 1e6 AS late_ms
FROM stragglers WHERE {SCOPE} AND {_WINDOW} AND steps_used > 0 AND rank >= 0
GROUP BY bin, first_rank ORDER BY first_rank, bin
"""

_KERNELS = f"""
SELECT name, sum(r.launches) AS launches, sum(r.gpu_ns) / 1e9 AS gpu_s,
       quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations) AS quantiles, {SHAPE}
FROM kernels_per_minute AS r WHERE {SCOPE} AND {MINUTE} GROUP BY name ORDER BY gpu_s DESC LIMIT 20
"""
KERNELS = f"""
SELECT k.name AS name, n.short AS short, n.family AS family, k.launches AS launches, k.gpu_s AS gpu_s,
       k.quantiles[1] / 1e3 AS p50_us, k.quantiles[3] / 1e3 AS p99_us, k.occupancy AS occupancy,
       k.limited_by AS limited_by, {achieved("sm_occupancy", f"{SCOPE} AND {MINUTE}")} AS achieved
FROM ({with_occupancy(_KERNELS, sm_of_job(SCOPE), *SHAPED)}) AS k
LEFT ANY JOIN kernel_names AS n ON n.name = k.name ORDER BY gpu_s DESC
"""

FAMILIES = f"""
SELECT if(n.family = '', 'other', n.family) AS family, sum(k.launches) AS launches, sum(k.gpu_s) AS gpu_s
FROM (
    SELECT name, sum(launches) AS launches, sum(gpu_ns) / 1e9 AS gpu_s
    FROM kernels_per_minute WHERE {SCOPE} AND {MINUTE} GROUP BY name
) AS k LEFT ANY JOIN kernel_names AS n ON n.name = k.name GROUP BY family ORDER BY gpu_s DESC
"""

MEMCPYS = f"""
SELECT direction, source, target, sum(copies) AS copies, sum(gb) AS gigabytes, sum(gb) / sum(busy_s) AS gb_per_s,
       argMin(rank, gb / busy_s) AS slowest_rank, min(gb / busy_s) AS slowest_gb_per_s,
       argMax(rank, gb) AS most_rank, max(gb) AS most_gigabytes
FROM (
    SELECT direction, source, target, rank, sum(m.copies) AS copies, sum(m.bytes) / 1e9 AS gb,
           greatest(sum(m.busy_ns), 1) / 1e9 AS busy_s
    FROM memcpys_per_minute AS m WHERE {SCOPE} AND {MINUTE} GROUP BY direction, source, target, rank
)
GROUP BY direction, source, target ORDER BY gigabytes DESC LIMIT 20
"""

RECORDS = f"""
SELECT sum(r.records) AS records, sum(dead_letters) AS dead, sum(r.duplicates) AS duplicates,
       sum(r.dropped_rows) AS dropped_rows,
       sumIf(r.records, topic IN ('{Topic.ITERATION}', '{Topic.REQUEST}')) AS serving
FROM records_per_minute AS r WHERE job = {{job:String}} AND run = {{run:String}}
"""
