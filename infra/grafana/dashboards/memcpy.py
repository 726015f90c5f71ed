"""Memcpy: how fast do copies run, which way, and which ranks copy from pageable memory?"""

from __future__ import annotations

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.dashboards.verdict_panels import FROM_LINE
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery
from drumline.infra.grafana.thresholds import PAGEABLE
from drumline.infra.grafana.variables import JOB, LABELLED, MARKS, RANKS, RUN

_WHERE = "@job AND @run AND @ranks"

MOVED = Panel(
    "timeseries",
    "Bytes copied by direction",
    "Bytes per second, all chosen ranks, from rolling windows of the stream processor (10 s every 5 s).",
    PanelQuery(
        f"""
        SELECT time, direction, sum(rate) / uniqExact(window_end) AS bytes_per_s FROM (
            SELECT $__timeInterval_ms(window_end) AS time, direction, rank, window_end,
                sum(bytes) / (dateDiff('millisecond', window_start, window_end) / 1e3) AS rate
            FROM memcpy_bandwidth WHERE {_WHERE} AND @window GROUP BY time, direction, rank, window_start, window_end
        ) GROUP BY time, direction ORDER BY time, direction
        """,
        "time:t direction:s bytes_per_s:n",
    ),
    unit="Bps",
    series="{direction}",
    min_interval="5s",
)
ACHIEVED = Panel(
    "timeseries",
    "Achieved bandwidth while copying",
    "Bytes divided by the time that copies took, by direction and memory kinds: what the link gave. The ten slowest; "
    "pageable memory stands out.",
    PanelQuery(
        worst(
            f"""
            SELECT $__timeInterval_ms(window_end) AS time,
                concat(direction, if(source = '', '', concat(', ', source, ' to ', target))) AS member,
                sum(bytes) / sum(busy_ns) * 1e9 AS v
            FROM memcpy_bandwidth WHERE {_WHERE} AND @window AND direction != 'memset'
            GROUP BY time, member HAVING sum(busy_ns) > 0
            """,
            "bytes_per_s", by="-avg(v)", bands=False,
        ),
        "time:t series:s member:s bytes_per_s:n",
    ),
    unit="Bps",
    series="{series}",
    min_interval="5s",
)  # fmt: skip
SHARE = Panel(
    "timeseries",
    "Time in pageable copies by rank",
    "Share of a window spent copying from or to pageable memory, which blocks its stream; the ten ranks with most, "
    "beside all. Lines: the alert's limit, and critical.",
    PanelQuery(
        worst(
            f"""
            SELECT time, toString(rank) AS member, max(part) AS v FROM (
                SELECT $__timeInterval_ms(window_end) AS time, rank, window_end,
                    sumIf(busy_ns, source = 'pageable' OR target = 'pageable') / 1e6 / dateDiff('millisecond',
                        window_start, window_end) AS part
                FROM memcpy_bandwidth WHERE {_WHERE} AND @window GROUP BY time, rank, window_start, window_end
            ) GROUP BY time, rank
            """,
            "share", prefix="rank ",
        ),
        "time:t series:s member:s share:n",
    ),
    unit="percentunit",
    series="{series}",
    thresholds=PAGEABLE,
    min_interval="5s",
    link=FROM_LINE,
    key="pageable",
)  # fmt: skip
COPIES = Panel(
    "timeseries",
    "Copies by direction",
    "Copies and memsets started per second.",
    PanelQuery(
        f"""
        SELECT $__timeInterval(minute) AS time, direction, sum(m.copies) / $__interval_s AS copies
        FROM memcpys_per_minute AS m WHERE {_WHERE} AND @minute GROUP BY time, direction ORDER BY time, direction
        """,
        "time:t direction:s copies:n",
    ),
    unit="ops",
    series="{direction}",
    min_interval="1m",
)
KINDS = Panel(
    "table",
    "Copies by kind",
    "Direction and kinds of memory: how many, how large, how fast, and the longest.",
    PanelQuery(
        f"""
        SELECT direction, if(source = '', '', concat(source, ' to ', target)) AS memory, sum(m.copies) AS copies,
            sum(m.bytes) AS bytes, bytes / copies AS mean_bytes, sum(m.busy_ns) AS busy_ns,
            if(busy_ns > 0, bytes / busy_ns * 1e9, 0) AS bytes_per_s, toUInt64(max(m.max_ns)) AS longest_ns
        FROM memcpys_per_minute AS m WHERE {_WHERE} AND @minute GROUP BY direction, memory ORDER BY busy_ns DESC
        """,
        "direction:s memory:s copies:n bytes:n mean_bytes:n busy_ns:n bytes_per_s:n longest_ns:n",
        "table",
    ),
    unit="short",
    width=24,
    height=6,
    fields={
        "memory": Field(width=200, fills=True),
        "bytes": Field("bytes"),
        "mean_bytes": Field("bytes", "Mean size"),
        "busy_ns": Field("ns", "Time copying"),
        "bytes_per_s": Field("Bps", "Bandwidth"),
        "longest_ns": Field("ns"),
    },
)
RANKS_TABLE = Panel(
    "table",
    "Copies to and from the host by rank",
    "Ranks that copy most, and the share of pageable memory.",
    PanelQuery(
        f"""
        SELECT rank, any(host) AS host, sum(m.copies) AS copies, sum(m.bytes) AS bytes, sum(m.busy_ns) AS busy_ns,
            sumIf(m.busy_ns, source = 'pageable' OR target = 'pageable') / greatest(busy_ns, 1) AS pageable
        FROM memcpys_per_minute AS m WHERE {_WHERE} AND @minute AND direction IN ('HtoD', 'DtoH')
            GROUP BY rank ORDER BY busy_ns DESC LIMIT 1000
        """,
        "rank:n host:s copies:n bytes:n busy_ns:n pageable:n",
        "table",
    ),
    unit="short",
    width=24,
    fields={
        "rank": Field(link=Link("This rank", "drumline-rank", {"rank": "${__data.fields.rank}"}), decimals=0),
        "host": Field(width=200), "bytes": Field("bytes"), "busy_ns": Field("ns", "Time copying"),
        "pageable": Field("percentunit", "Of pageable memory", gauge=True, width=170, decimals=0),
    },
)  # fmt: skip

MEMCPY = Dashboard(
    "drumline-memcpy",
    "Memcpy",
    "How fast do copies run, which way, and which ranks copy from pageable memory?",
    "job",
    ((MOVED, ACHIEVED), (SHARE, COPIES), (KINDS,), (RANKS_TABLE,)),
    (*LABELLED, JOB, RUN, RANKS),
    MARKS,
)
