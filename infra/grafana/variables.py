"""Variables that dashboards share, each chained to those before it, and shared annotations."""

from __future__ import annotations

from drumline.infra.grafana.model import Annotation, PanelQuery, Variable
from drumline.infra.grafana.tokens import LABELS

#: What ran in the time range. The rollup of records is small however many kernels there are.
_SEEN = "FROM records_per_minute WHERE @minute AND job != ''"


def _label(name: str, title: str, description: str, value: str, where: str) -> Variable:
    return Variable(
        name,
        title,
        f"SELECT DISTINCT {value} AS value, value AS text FROM {LABELS} WHERE published <= $__toTime_ms AND {where} "
        "ORDER BY value LIMIT 1000",
        multi=True,
        has_all=True,
        description=description,
    )


def _by_key(key: str) -> Variable:
    where = f"startsWith(pair, '{key}=')"
    return _label(key, key.capitalize(), f"label {key} of drumline run", f"substring(pair, {len(key) + 2})", where)


#: Labels of `drumline run` choose runs on every dashboard.
LABELLED = (
    _by_key("team"),
    _by_key("user"),
    _label("label", "Label", "other labels of drumline run", "pair", "NOT match(pair, '^(team|user)=')"),
)
JOB = Variable(
    "job",
    "Job",
    f"SELECT job AS value, job AS text {_SEEN} AND @labelled GROUP BY job ORDER BY job LIMIT 1000",
    description="active in this time range",
)
JOBS = Variable("job", "Job", JOB.query, multi=True, has_all=True, description="active in this time range")
RUN = Variable(
    "run", "Run",
    f"SELECT run AS value, run AS text {_SEEN} AND @job AND @labelled AND run != '' GROUP BY run "
    "ORDER BY max(last_published) DESC LIMIT 1000",
    multi=True, has_all=True, description="one start of the job each",
)  # fmt: skip
#: By kernels and by verdicts: a job may send only one of them.
_RANKS = """
SELECT toString(rank) AS value, concat('rank ', toString(rank), ' ', host) AS text FROM (
    SELECT rank, any(host) AS host FROM processes WHERE @job AND @run GROUP BY rank
) ORDER BY rank LIMIT 4096
"""
RANKS = Variable("rank", "Rank", _RANKS, multi=True, has_all=True, description="ranks of the chosen runs")
RANK = Variable("rank", "Rank", _RANKS, description="one rank of the chosen runs")
FAMILIES = Variable(
    "family", "Family",
    "SELECT family AS value, family AS text FROM kernel_names GROUP BY family ORDER BY family LIMIT 100",
    multi=True, has_all=True, description="gemm, attention, nccl, ...",
)  # fmt: skip
HOSTS = Variable(
    "host", "Host",
    "SELECT host AS value, host AS text FROM devices_per_minute WHERE @minute AND @jobs GROUP BY host ORDER BY host "
    "LIMIT 1000",
    multi=True, has_all=True, description="hosts whose GPUs were sampled in this time range",
)  # fmt: skip
PRICE = Variable("price", "Price of a GPU-hour", default="1", description="1 shows GPU-hours")
CURRENCY = Variable("currency", "Currency", default="USD", description="of the price; shown in headers only")

_TEXT = (
    "concat(if(rank < 0, 'whole job', concat('rank ', toString(rank), ' on ', host)), ': ', state, "
    "if(cause IN ('', 'ok'), '', concat(', ', cause)), if(detail = '', '', concat(' (', detail, ')')), ', ', "
    "toString(round(100 * lost_share, 1)), '% of the time')"
)


def _verdicts(where: str) -> Annotation:
    return Annotation("Verdicts", "orange", PanelQuery(
        f"""
        SELECT window_start AS time, window_end AS timeEnd, {_TEXT} AS text, [job, state] AS tags
        FROM stragglers WHERE {where} AND @window AND changed AND state IN ('warning', 'critical', 'cleared')
        ORDER BY time LIMIT 200
        """,
        "time:t timeEnd:t text:s tags:s", "table",
    ))  # fmt: skip


def _xids(where: str) -> Annotation:
    return Annotation("XIDs", "red", PanelQuery(
        f"""
        SELECT time, concat(host, ' GPU ', toString(gpu_index), ': XID ', toString(assumeNotNull(xid))) AS text, [host,
            'xid'] AS tags
        FROM device_samples WHERE {where} AND @sample AND xid > 0 ORDER BY time LIMIT 200
        """,
        "time:t text:s tags:s", "table",
    ))  # fmt: skip


def _attempts(where: str) -> Annotation:
    """Mark restarts: step numbers after one are those of another attempt."""
    return Annotation("Restarts", "purple", PanelQuery(
        f"""
        SELECT attempt_start AS time, concat('attempt ', toString(attempt), ' of run ', run, ' begins') AS text, [job,
            'restart'] AS tags
        FROM attempts WHERE {where} AND attempt > 1 AND @attempt ORDER BY time LIMIT 200
        """,
        "time:t text:s tags:s", "table",
    ))  # fmt: skip


#: For dashboards of one job, and for those of several.
MARKS = (_verdicts("@job AND @run"), _xids("@job"), _attempts("@job AND @run"))
MARKS_OF_JOBS = (_verdicts("@jobs"), _xids("@jobs"), _attempts("@jobs"))
