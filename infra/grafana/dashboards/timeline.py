"""Kernel timeline: what ran on one GPU, launch by launch, in some milliseconds or seconds?"""

from __future__ import annotations

from drumline.infra.grafana.dashboards.status import stat
from drumline.infra.grafana.model import Dashboard, Field, Panel, PanelQuery
from drumline.infra.grafana.variables import JOB, LABELLED, MARKS, RANK, RUN

#: More are not drawn, as the panel states; the numbers above count all.
DRAWN = 1_000
STREAMS = 12
LONGEST_COLLECTIVES = 200
_RAN = "FROM kernels WHERE @job AND @run AND @rank AND @start"


NUMBERS = (
    stat("Kernels", f"In this time range; the first {DRAWN} are drawn.", f"SELECT count() AS value {_RAN}", width=6),
    stat(
        "Kernel time",
        "Sum of durations; overlapping kernels count twice.",
        f"SELECT sum(duration_ns) AS value {_RAN}",
        "ns",
        width=6,
    ),
    stat("Longest kernel", "In this time range.", f"SELECT max(duration_ns) AS value {_RAN}", "ns", width=6),
    stat("Streams", "With kernels.", f"SELECT uniqExact(stream) AS value {_RAN}", width=6),
)
TIMELINE = Panel(
    "state-timeline",
    "Kernels by stream",
    f"The first {DRAWN} kernels of the time range, by stream. Zoom in: a step has thousands. Nothing between two "
    "kernels of all streams is an idle GPU. `drumline timeline` writes all kernels of all ranks as a trace.",
    PanelQuery(
        f"""
        SELECT edge.1 AS time, concat('stream ', toString(stream)) AS stream, edge.2 AS kernel FROM (
            SELECT stream, arrayJoin([(start, toNullable(short)), (ends, NULL)]) AS edge FROM (
                SELECT k.stream AS stream, k.start AS start, addNanoseconds(k.start, k.duration_ns) AS ends,
                    n.short AS short FROM (
                    SELECT stream, start, duration_ns, name {_RAN} AND stream IN (
                        SELECT stream {_RAN} GROUP BY stream ORDER BY count() DESC, stream LIMIT {STREAMS}
                    ) ORDER BY start LIMIT {DRAWN}
                ) AS k LEFT JOIN kernel_names AS n ON k.name = n.name
            )
        ) ORDER BY time, isNotNull(kernel)
        """,
        "time:t stream:s kernel:s",
        "table",
    ),
    unit="none",
    width=24,
    height=10,
    minimum=None,
    transformations=(
        {
            "id": "partitionByValues",
            "options": {"fields": ["stream"], "keepFields": False, "naming": {"asLabels": True}},
        },
    ),
    options={"showValue": "auto", "mergeValues": False},
    empty="no kernels: choose some milliseconds to seconds in which this rank ran",
)
GAPS = Panel(
    "table",
    "Longest gaps",
    "The 30 longest times of the whole range in which no kernel ran on any stream, and what came before and after. "
    "Copies may have run.",
    PanelQuery(
        f"""
        SELECT since, gap_ns, before, n.short AS after FROM (
            SELECT since, gap_ns, n.short AS before, after FROM (
                SELECT max(addNanoseconds(start, duration_ns)) OVER sofar AS since,
                    dateDiff('nanosecond', since, start) AS gap_ns,
                    argMax(name, addNanoseconds(start, duration_ns)) OVER sofar AS before, name AS after
                {_RAN} WINDOW sofar AS (ORDER BY start ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            ) AS g LEFT JOIN kernel_names AS n ON g.before = n.name
            WHERE gap_ns > 0 AND toUnixTimestamp(since) > 0 ORDER BY gap_ns DESC LIMIT 30
        ) AS f LEFT JOIN kernel_names AS n ON f.after = n.name ORDER BY gap_ns DESC
        """,
        "since:t gap_ns:n before:s after:s",
        "table",
    ),
    unit="none",
    width=24,
    fields={
        "since": Field(width=200),
        "gap_ns": Field("ns"),
        "before": Field(header="Kernel before", width=400),
        "after": Field(header="Kernel after", width=400, fills=True),
    },
    empty="no gaps",
)
LONGEST = Panel(
    "table",
    "Longest kernels",
    "The 50 longest of the time range, with their launch configuration.",
    PanelQuery(
        f"""
        SELECT n.short AS kernel, k.start AS start, k.duration_ns AS duration_ns, k.stream AS stream, grid, block,
            registers, shared_bytes FROM (
            SELECT start, name, duration_ns, stream, concat(toString(grid_x), ' x ', toString(grid_y), ' x ',
                toString(grid_z)) AS grid,
                concat(toString(block_x), ' x ', toString(block_y), ' x ', toString(block_z)) AS block, registers,
                shared_static + shared_dynamic AS shared_bytes
            {_RAN} ORDER BY duration_ns DESC LIMIT 50
        ) AS k LEFT JOIN kernel_names AS n ON k.name = n.name ORDER BY duration_ns DESC
        """,
        "kernel:s start:t duration_ns:n stream:n grid:s block:s registers:n shared_bytes:n",
        "table",
    ),
    unit="none",
    width=24,
    fields={
        "kernel": Field(width=300, fills=True),
        "start": Field(width=200),
        "grid": Field(width=150),
        "block": Field(width=130),
        "duration_ns": Field("ns"),
        "shared_bytes": Field("bytes", "Shared memory"),
    },
)
COPIES = Panel(
    "table",
    "Copies",
    "The 50 longest of the time range.",
    PanelQuery(
        """
        SELECT start, direction, source, target, bytes, duration_ns, bytes / greatest(duration_ns, 1) *
            1e9 AS bytes_per_s, stream
        FROM memcpys WHERE @job AND @run AND @rank AND @start ORDER BY duration_ns DESC LIMIT 50
        """,
        "start:t direction:s source:s target:s bytes:n duration_ns:n bytes_per_s:n stream:n",
        "table",
    ),
    unit="none",
    width=24,
    height=6,
    fields={
        "start": Field(width=200),
        "source": Field(header="From", fills=True),
        "target": Field(header="To"),
        "bytes": Field("bytes"),
        "duration_ns": Field("ns"),
        "bytes_per_s": Field("Bps", "Bandwidth"),
    },
    empty="no copies",
)
COLLECTIVES = Panel(
    "table",
    "Collectives",
    f"The {LONGEST_COLLECTIVES} longest of this rank in the time range, in order of time; covered: time in which "
    "other kernels of this rank ran beside it.",
    PanelQuery(
        f"""
        SELECT * FROM (
            SELECT start, operation, bytes, communicator, step, ordinal, duration_ns, covered_ns
            FROM collectives WHERE @job AND @run AND @rank AND @start
            ORDER BY duration_ns DESC LIMIT {LONGEST_COLLECTIVES}
        ) ORDER BY start
        """,
        "start:t operation:s bytes:n communicator:s step:n ordinal:n duration_ns:n covered_ns:n",
        "table",
    ),
    unit="none",
    width=24,
    fields={
        "start": Field(width=200),
        "communicator": Field(width=150, fills=True),
        "bytes": Field("bytes"),
        "ordinal": Field(header="Number in step"),
        "duration_ns": Field("ns"),
        "covered_ns": Field("ns"),
    },
    empty="no collectives",
)

TIMELINE_BOARD = Dashboard(
    "drumline-timeline",
    "Kernel timeline",
    "What ran on one GPU, launch by launch? Choose some milliseconds to seconds; steps of the Rank dashboard lead "
    "here.",
    "kernel",
    (NUMBERS, (TIMELINE,), (GAPS,), (LONGEST,), (COLLECTIVES,), (COPIES,)),
    (*LABELLED, JOB, RUN, RANK),
    MARKS,
    start="now-1m",
    refresh="",
)
