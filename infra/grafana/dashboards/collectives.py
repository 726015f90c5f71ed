"""Panels of the dashboard Collectives and stragglers: bandwidth of collectives, and of what ranks send each other."""

from __future__ import annotations

from drumline.infra.grafana.bands import worst
from drumline.infra.grafana.model import Field, Panel, PanelQuery

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
    f"communicator, the ten slowest; of a sample where there are more than {SAMPLED:,} rows.",
    PanelQuery(
        worst(
            f"""
            SELECT $__timeInterval_ms(at) AS time, concat(operation, ' on ', substring(communicator, 1, 8)) AS member,
                quantile(0.5)(bus) AS v
            FROM ({_BY_COLLECTIVE.format(least=1 << 20)}) GROUP BY time, member
            """,
            "bytes_per_s",
            by="-avg(v)",
            bands=False,
        ),
        "time:t series:s member:s bytes_per_s:n",
    ),
    series="{series}",
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
    fields={
        "communicator": Field(width=165),
        "bytes": Field("bytes", "Size"),
        "p50_ns": Field("ns", "Median"),
        "bytes_per_s": Field("Bps", "Bus bandwidth"),
    },
    empty="no collectives",
)

#: Least size of what was recorded of a flow in an interval for which its rate is shown: below it is latency.
LEAST_BYTES = 1 << 20


def _flows(time: str) -> str:
    """Return the query of the rates of flows, by time: that of the end that saw less time on the network."""
    return f"""
    SELECT at, communicator, sender, receiver, anyIf(of_rank, sends) AS from_rank, anyIf(of_host, sends) AS from_host,
        anyIf(of_rank, NOT sends) AS to_rank, anyIf(of_host, NOT sends) AS to_host, anyIf(size, sends) AS sent,
        max(rate) AS bytes_per_s
    FROM (
        SELECT {time} AS at, communicator, direction = 'send' AS sends, if(sends, comm_rank, peer) AS sender,
            if(sends, peer, comm_rank) AS receiver, any(rank) AS of_rank, any(host) AS of_host,
            toFloat64(sum(bytes)) AS size, 1e9 * size / greatest(sum(busy_ns), 1) AS rate
        FROM transfers WHERE @job AND @run AND @start AND local = ''
        GROUP BY run, at, communicator, sends, sender, receiver
    ) GROUP BY at, communicator, sender, receiver HAVING count() = 2 AND sent >= {LEAST_BYTES}
    """


RATES = Panel(
    "timeseries",
    "Rate between ranks over the network",
    "What was recorded of the transfers of a rank to another, by the time in which data was on the network: that of "
    "the end that saw less of it, so that a late sender or receiver does not count. The ten slowest.",
    PanelQuery(
        worst(
            f"""
            SELECT at AS time, concat('rank ', toString(from_rank), ' to ', toString(to_rank)) AS member,
                bytes_per_s AS v FROM ({_flows("$__timeInterval_ms(start)")})
            """,
            "bytes_per_s",
            by="-avg(v)",
            bands=False,
        ),
        "time:t series:s member:s bytes_per_s:n",
    ),
    series="{series}",
    unit="Bps",
    min_interval="5s",
    key="transfers",
    empty="no transfers over the network were recorded",
)
PAIRS = Panel(
    "table",
    "Which link",
    "Of each rank and the one that it sends to: the newest rate of 10 s, the median of its own, and that of the flows "
    "of its communicator. The slowest against these first.",
    PanelQuery(
        f"""
        SELECT from_rank, from_host, to_rank, to_host, newest, usual,
            median(usual) OVER (PARTITION BY communicator, from_host = to_host) AS peers,
            newest / greatest(usual, peers) AS part
        FROM (
            SELECT communicator, any(from_rank) AS from_rank, any(from_host) AS from_host, any(to_rank) AS to_rank,
                any(to_host) AS to_host, argMax(bytes_per_s, at) AS newest, median(bytes_per_s) AS usual
            FROM ({_flows("toStartOfInterval(start, toIntervalSecond(10))")}) GROUP BY communicator, sender, receiver
        ) ORDER BY part, from_rank, to_rank LIMIT 100
        """,
        "from_rank:n from_host:s to_rank:n to_host:s newest:n usual:n peers:n part:n",
        "table",
    ),
    unit="short",
    fields={
        "from_rank": Field(header="from", width=70, decimals=0),
        "from_host": Field(header="on", width=90),
        "to_rank": Field(header="to", width=70, decimals=0),
        "to_host": Field(header="on ", width=90),
        "newest": Field("Bps", "Newest"),
        "usual": Field("Bps", "Its median"),
        "peers": Field("Bps", "Others"),
        "part": Field("percentunit", "Of best", decimals=0),
    },
    empty="no transfers over the network were recorded",
)
