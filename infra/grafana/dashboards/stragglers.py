"""Collectives and stragglers: who is late, since when, why, and how do we know?"""

from __future__ import annotations

from drumline.infra.grafana.dashboards.verdict_panels import late_ranks, lost_share
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery
from drumline.infra.grafana.thresholds import LEVEL, SHARE
from drumline.infra.grafana.variables import JOB, MARKS, RANKS, RUN

TO_RANK = Link("This rank", "drumline-rank", {"rank": "${__data.fields.rank}"})
TO_WINDOW = Link(
    "These steps on the timeline", "drumline-timeline", {"rank": "${__data.fields.rank}"},
    time=("${__data.fields.from_ms}", "${__data.fields.to_ms}"),
)  # fmt: skip

STATES = Panel(
    "state-timeline",
    "Level in force by rank",
    "Level of each rank after the last window, with recurrence: two of three windows raise a level, three in a row "
    "lower it. "
    "Rank -1 is the job as a whole.",
    PanelQuery(
        """
        SELECT $__timeInterval_ms(window_end) AS time, concat('rank ', toString(s.rank)) AS rank, argMax(@level,
            window_end) AS level
        FROM (SELECT rank, window_end, state FROM stragglers WHERE @job AND @run AND @ranks AND @window) AS s
        GROUP BY time, s.rank ORDER BY time, s.rank
        """,
        "time:t rank:s level:n",
    ),
    unit="none",
    height=9,
    levels=True,
    thresholds=LEVEL,
    minimum=None,
    link=Link("This rank", "drumline-rank", keeps=("job", "run", "rank")),
    empty="no verdicts in this time range",
)
LATENESS = Panel(
    "heatmap",
    "Lateness by rank",
    "Time by which a rank was later than the last of its waiting peers, per step, mean over the window. It "
    "names victims too: "
    "a rank that waited elsewhere comes late. Lost time (right) follows the attribution.",
    PanelQuery(
        """
        SELECT $__timeInterval_ms(window_end) AS time, toString(s.rank) AS rank,
            avg(lateness_ns / greatest(steps_used, 1)) AS lateness
        FROM (
            SELECT rank, window_end, lateness_ns, steps_used FROM stragglers
            WHERE @job AND @run AND @ranks AND rank >= 0 AND @window AND @known
        ) AS s GROUP BY time, s.rank ORDER BY time, s.rank
        """,
        "time:t rank:s lateness:n",
    ),
    unit="ns",
    height=9,
    empty="no verdicts in this time range",
)
CHANGES = Panel(
    "table",
    "Verdicts, with their evidence",
    "One row for each change of a verdict: level, steps, and the numbers it rests on "
    "(docs/design/stragglers.md). "
    "`excess_ms`: what the rank's steps had more than its peers', by part of its budget.",
    PanelQuery(
        """
        SELECT window_start AS time, rank, host, @level AS level, cause, detail,
            group AS late_with, confidence,
            lost_share, lost_ns, gpu_seconds_lost, money_lost, first_step, last_step,
            JSONExtractString(evidence_json, 'communicator') AS communicator,
            concat(JSONExtractString(evidence_json, 'collective', 'operation'), ' #',
                toString(JSONExtractInt(evidence_json, 'collective', 'ordinal')),
                ' of step ', toString(JSONExtractInt(evidence_json, 'collective', 'step'))) AS worst_collective,
            arrayStringConcat(arrayMap(p -> concat(replaceOne(p.1, '_ns', ''), ' ',
                toString(round(toFloat64OrZero(p.2) / 1e6, 1))),
                JSONExtractKeysAndValuesRaw(evidence_json, 'excess_ns')), ', ') AS excess_ms,
            evidence_json AS evidence, toUnixTimestamp64Milli(window_start) AS from_ms,
                toUnixTimestamp64Milli(window_end) AS to_ms
        FROM stragglers WHERE @job AND @run AND @ranks AND @window AND changed AND severity != 'ok'
        ORDER BY time DESC LIMIT 500
        """,
        "time:t rank:n host:s level:n cause:s detail:s late_with:s confidence:s lost_share:n lost_ns:n "
        "gpu_seconds_lost:n "
        "money_lost:n first_step:n last_step:n communicator:s worst_collective:s excess_ms:s evidence:s from_ms:n "
        "to_ms:n",
        "table",
    ),
    unit="none",
    width=24,
    height=9,
    fields={
        "rank": Field(link=TO_RANK),
        "level": Field(levels=True, thresholds=LEVEL),
        "lost_share": Field("percentunit", thresholds=SHARE, decimals=1),
        "lost_ns": Field("ns"),
        "gpu_seconds_lost": Field("s", decimals=2),
        "money_lost": Field(decimals=2),
        "first_step": Field(link=TO_WINDOW, decimals=0),
        "last_step": Field(decimals=0),
        "evidence": Field(inspect=True, width=160),
        "from_ms": Field(hidden=True),
        "to_ms": Field(hidden=True),
    },
    empty="no verdict changed",
)
#: Bus bandwidth of a collective of `bytes` that took `shortest` on `n` ranks, as nccl-tests count it
#: (doc/PERFORMANCE.md there); NCCL reports sizes of AllGather, ReduceScatter and AllToAll per rank. Bytes per second.
_SPEED = """bytes / shortest * 1e9 * multiIf(operation = 'AllReduce', 2 * (n - 1) / n,
    operation IN ('AllGather', 'ReduceScatter', 'AllToAll'), n - 1, 1) AS bus"""
#: Rows read, about: where a time range has more, a sample of the collectives stands for all of them.
SAMPLED = 500_000
_COLLECTIVES = "FROM collectives AS c WHERE @job AND @run AND @start"
#: One row a collective: every rank has one row of it, and its peers wait for the last. Those outside steps are few.
_BY_COLLECTIVE = f"""
SELECT communicator, operation, c.bytes AS bytes, min(start) AS at, toUInt32(count()) AS n,
    min(duration_ns) AS shortest, {_SPEED}
{_COLLECTIVES} AND duration_ns > 0 AND bytes >= {{least}} AND (step < 0 OR intHash32(toUInt32(step * 1000 + ordinal)) %
    (SELECT toUInt32(greatest(intDiv(count(), {SAMPLED}), 1)) {_COLLECTIVES}) = 0)
GROUP BY run, communicator, operation, bytes, step, ordinal HAVING n > 1
"""
BUS = Panel(
    "timeseries",
    "Bus bandwidth of collectives",
    "Of collectives of 1 MiB and more: bytes moved per second as nccl-tests count them (AllReduce 2(n-1)/n), over "
    "the shortest duration of all ranks, so that waiting for a late one does not count. Median by operation and "
    f"communicator; of a sample where there are more than {SAMPLED:,} rows.",
    PanelQuery(
        f"""
        SELECT $__timeInterval_ms(at) AS time, operation, communicator, quantile(0.5)(bus) AS bytes_per_s
        FROM ({_BY_COLLECTIVE.format(least=1 << 20)})
        GROUP BY time, operation, communicator ORDER BY time, operation, communicator
        """,
        "time:t operation:s communicator:s bytes_per_s:n",
    ),
    unit="Bps",
    min_interval="5s",
    key="bandwidth",
    empty="no collectives of 1 MiB or more",
)
SIZES = Panel(
    "table",
    "Bus bandwidth by size",
    "As above, by message size, of the same sample: small messages are bound by latency, so each size has a normal of "
    "its own.",
    PanelQuery(
        f"""
        SELECT operation, communicator, bytes, count() AS collectives, quantile(0.5)(shortest) AS p50_ns,
            quantile(0.5)(bus) AS bytes_per_s
        FROM ({_BY_COLLECTIVE.format(least=0)}) GROUP BY operation, communicator, bytes ORDER BY bytes DESC LIMIT 100
        """,
        "operation:s communicator:s bytes:n collectives:n p50_ns:n bytes_per_s:n",
        "table",
    ),
    unit="short",
    fields={"bytes": Field("bytes"), "p50_ns": Field("ns"), "bytes_per_s": Field("Bps")},
    empty="no collectives",
)
WAITING = Panel(
    "timeseries",
    "Waiting in collectives by rank",
    "Time per step that a rank stood in collectives until the last one came, all communicators together. The late "
    "rank waits least.",
    PanelQuery(
        """
        SELECT $__timeInterval_ms(window_end) AS time, toString(s.rank) AS rank,
            avg(wait_ns / greatest(steps_used, 1)) AS waited
        FROM (
            SELECT rank, window_end, wait_ns, steps_used FROM stragglers
            WHERE @job AND @run AND @ranks AND rank >= 0 AND @window AND @known
        ) AS s GROUP BY time, s.rank ORDER BY time, s.rank
        """,
        "time:t rank:s waited:n",
    ),
    unit="ns",
    empty="no verdicts in this time range",
)

STRAGGLERS = Dashboard(
    "drumline-stragglers",
    "Collectives and stragglers",
    "Who is late, since when, why, what does it cost, and how do we know?",
    "job",
    (
        (STATES, LATENESS),
        (late_ranks("@job AND @run AND @ranks"),),
        (lost_share("@job AND @run AND @ranks AND rank >= 0", key="lost"), WAITING),
        (CHANGES,),
        (BUS, SIZES),
    ),
    (JOB, RUN, RANKS),
    MARKS,
)
