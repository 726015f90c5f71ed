"""Kernels: where does GPU time go, and do launches fill the GPU?"""

from __future__ import annotations

from drumline.infra.clickhouse.occupancy import sm_of_job, with_occupancy
from drumline.infra.grafana.model import Dashboard, Field, Link, Panel, PanelQuery, Variable
from drumline.infra.grafana.tokens import is_chosen
from drumline.infra.grafana.variables import FAMILIES, JOB, LABELLED, MARKS, RANKS, RUN

_WHERE = "@job AND @run AND @ranks AND @minute"
_FAMILY = is_chosen("family", "family")
#: Kernels of the range, one row a name; joined with their names afterwards, so that the rollup is grouped once.
_NAMED = f"""
SELECT name, sum(k.launches) AS launches, sum(k.gpu_ns) AS gpu_ns, toUInt64(max(k.max_ns)) AS longest_ns,
    quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations) AS d, quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(blocks) AS g,
    quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(threads_per_block) AS t,
    toUInt32(max(k.registers)) AS registers, toUInt32(max(k.shared_bytes)) AS shared_bytes,
        sum(k.graph_launches) AS from_graphs
FROM kernels_per_minute AS k WHERE {_WHERE} GROUP BY name
"""
_SHAPED = with_occupancy(_NAMED, sm_of_job("@job AND @run"), "t[2]", "registers", "shared_bytes")
KERNEL = Variable(
    "kernel",
    "Kernel",
    f"""
    SELECT k.name AS value, any(n.short) AS text
        FROM kernels_per_minute AS k INNER JOIN kernel_names AS n ON k.name = n.name
    WHERE @job AND @run AND @minute AND {_FAMILY}
    GROUP BY k.name ORDER BY sum(k.gpu_ns) DESC LIMIT 300
    """,
    multi=True,
    has_all=True,
    description="the 300 with most GPU time",
)
_KERNELS = is_chosen("name", "kernel")

FAMILY_TIME = Panel(
    "timeseries",
    "GPU time by family",
    "GPUs busy with each family of kernels: GPU seconds per second of the chosen ranks. A kernel's "
    "family follows from its name.",
    PanelQuery(
        f"""
        SELECT $__timeInterval(minute) AS time, family, sum(gpu) / 1e9 / $__interval_s AS gpu_time FROM (
            SELECT minute, name, sum(gpu_ns) AS gpu FROM kernels_per_minute WHERE {_WHERE} GROUP BY minute, name
        ) AS k LEFT JOIN kernel_names AS n ON k.name = n.name WHERE {_FAMILY}
        GROUP BY time, family ORDER BY time, family
        """,
        "time:t family:s gpu_time:n",
    ),
    unit="suffix:GPUs",
    decimals=1,
    series="{family}",
    stacked=True,
    min_interval="1m",
)
RATE = Panel(
    "timeseries",
    "Launches by family",
    "Kernels started per second. Much more than a few thousand a rank, and the host has to hurry: compile or capture "
    "a graph.",
    PanelQuery(
        f"""
        SELECT $__timeInterval(minute) AS time, family, sum(n_launches) / $__interval_s AS launches FROM (
            SELECT minute, name, sum(launches) AS n_launches FROM kernels_per_minute WHERE {_WHERE} GROUP BY minute,
                name
        ) AS k LEFT JOIN kernel_names AS n ON k.name = n.name WHERE {_FAMILY}
        GROUP BY time, family ORDER BY time, family
        """,
        "time:t family:s launches:n",
    ),
    unit="ops",
    series="{family}",
    min_interval="1m",
)
COUNTED = Panel(
    "timeseries",
    "Launches counted without records",
    "Of processes of policy counts: kernels launched per second by family, those of replayed graphs included. There "
    "are no times, so none of the other panels have rows of them.",
    PanelQuery(
        f"""
        SELECT $__timeInterval(at) AS time, if(family = '', 'other', family) AS family,
            sum(n_launches) / $__interval_s AS launches
        FROM (
            SELECT start AS at, name, sum(launches) AS n_launches FROM launch_counts
            WHERE @job AND @run AND @ranks AND @start AND kind = 128 GROUP BY at, name
        ) AS c LEFT JOIN kernel_names AS n ON c.name = n.name WHERE {_FAMILY} OR n.name = ''
        GROUP BY time, family ORDER BY time, family
        """,
        "time:t family:s launches:n",
    ),
    unit="ops",
    series="{family}",
    min_interval="5s",
    empty="none: no process of policy counts",
)
COPIED = Panel(
    "timeseries",
    "Copies counted without records",
    "Of processes of policy counts: bytes per second that the host's calls and replayed graphs copy or set, by "
    "direction. It is no bandwidth of a copy: how long they took is not known.",
    PanelQuery(
        """
        SELECT $__timeInterval(start) AS time, direction, sum(bytes) / $__interval_s AS copied FROM launch_counts
        WHERE @job AND @run AND @ranks AND @start AND kind < 128
        GROUP BY time, direction ORDER BY time, direction
        """,
        "time:t direction:s copied:n",
    ),
    unit="Bps",
    series="{direction}",
    min_interval="5s",
    empty="none: no process of policy counts",
)
TOP = Panel(
    "table",
    "Kernels by GPU time",
    "Durations of the kernels with most GPU time.",
    PanelQuery(
        f"""
        SELECT short AS kernel, family, launches, gpu_ns / 1e9 AS gpu_s, gpu_ns / sum(gpu_ns) OVER () AS share,
            d[1] AS p50_ns, d[2] AS p95_ns, longest_ns
        FROM ({_NAMED}) AS k LEFT JOIN kernel_names AS n ON k.name = n.name
        WHERE {_FAMILY} AND {_KERNELS} ORDER BY gpu_s DESC LIMIT 200
        """,
        "kernel:s family:s launches:n gpu_s:n share:n p50_ns:n p95_ns:n longest_ns:n",
        "table",
    ),
    width=24,
    height=10,
    fields={
        "kernel": Field(width=300, fills=True),
        "gpu_s": Field("s", "GPU time", decimals=1),
        "share": Field("percentunit", "Share of GPU time", gauge=True, width=160, decimals=1),
        "p50_ns": Field("ns", "Median"),
        "p95_ns": Field("ns", "p95"),
        "longest_ns": Field("ns"),
    },
)
SHAPES = Panel(
    "table",
    "Their launches",
    "Launch configuration (p95 launch) and theoretical occupancy of the same kernels: an upper bound from threads, "
    "registers and shared memory, empty for a GPU model that is not known. Waves: p95 blocks / (SMs x resident "
    "blocks); below 1 the GPU is not filled.",
    PanelQuery(
        f"""
        SELECT short AS kernel, g[2] AS p95_grid, t[2] AS p95_block, registers, shared_bytes, occupancy, limited_by,
            if(sms * resident = 0, NULL, g[2] / (sms * resident)) AS waves
        FROM ({_SHAPED}) AS k LEFT JOIN kernel_names AS n ON k.name = n.name
        WHERE {_FAMILY} AND {_KERNELS} ORDER BY gpu_ns DESC LIMIT 200
        """,
        "kernel:s p95_grid:n p95_block:n registers:n shared_bytes:n occupancy:n limited_by:s waves:n",
        "table",
    ),
    width=24,
    fields={
        "kernel": Field(width=300, fills=True),
        "p95_grid": Field(header="Blocks", decimals=0),
        "p95_block": Field(header="Threads a block", decimals=0),
        "shared_bytes": Field("bytes", "Shared memory"),
        "occupancy": Field("percentunit", gauge=True, width=150, decimals=0),
        "limited_by": Field(width=140),
        "waves": Field(decimals=2),
    },
)
P95 = Panel(
    "timeseries",
    "p95 duration of the chosen kernels",
    "By short name, all chosen ranks. Choose kernels above; with All, the six with most GPU time.",
    PanelQuery(
        f"""
        SELECT time, substring(short, 1, 32) AS kernel, quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(state)[2] AS p95 FROM (
            SELECT $__timeInterval(minute) AS time, name, quantilesDDMergeState(0.01, 0.5, 0.95,
                0.99)(durations) AS state
            FROM kernels_per_minute WHERE {_WHERE} AND {_KERNELS} AND name IN (
                SELECT name FROM kernels_per_minute WHERE {_WHERE} AND {_KERNELS}
                GROUP BY name ORDER BY sum(gpu_ns) DESC LIMIT 6
            ) GROUP BY time, name
        ) AS k LEFT JOIN kernel_names AS n ON k.name = n.name GROUP BY time, kernel ORDER BY time, kernel
        """,
        "time:t kernel:s p95:n",
    ),
    unit="ns",
    series="{kernel}",
    min_interval="1m",
)
BY_RANK = Panel(
    "table",
    "The chosen kernels by rank",
    "A rank whose median is above the others' runs the same work slower: throttled, shared, or a slow part.",
    PanelQuery(
        f"""
        SELECT rank, any(host) AS host, sum(k.launches) AS launches, sum(k.gpu_ns) / 1e9 AS gpu_s, d[1] AS p50_ns,
            d[2] AS p95_ns,
            quantilesDDMerge(0.01, 0.5, 0.95, 0.99)(durations) AS d, p50_ns / median(p50_ns) OVER () AS to_median
        FROM kernels_per_minute AS k WHERE {_WHERE} AND {_KERNELS} AND name IN (
            SELECT name FROM kernel_names WHERE {_FAMILY}
        ) GROUP BY rank ORDER BY to_median DESC LIMIT 1000
        """,
        "rank:n host:s launches:n gpu_s:n p50_ns:n p95_ns:n d:s to_median:n",
        "table",
    ),
    fields={
        "rank": Field("none", link=Link("This rank", "drumline-rank", {"rank": "${__data.fields.rank}"}), decimals=0),
        "gpu_s": Field("s", "GPU time", decimals=1),
        "p50_ns": Field("ns", "Median"),
        "p95_ns": Field("ns", "p95"),
        "d": Field(hidden=True),
        "to_median": Field("none", "To other ranks", decimals=3),
    },
)
SMALL = Panel(
    "table",
    "Kernels that leave SMs empty",
    "Kernels whose p95 grid has fewer blocks than the GPU has SMs, by GPU time: candidates for fusion, larger "
    "batches or graphs.",
    PanelQuery(
        f"""
        SELECT short AS kernel, family, launches, gpu_ns / 1e9 AS gpu_s, g[2] AS p95_grid, sms,
            gpu_ns / launches AS mean_ns, from_graphs / launches AS graphs
        FROM ({_SHAPED}) AS k LEFT JOIN kernel_names AS n ON k.name = n.name
        WHERE {_FAMILY} AND 1.01 * g[2] < sms ORDER BY gpu_s DESC LIMIT 100
        """,
        "kernel:s family:s launches:n gpu_s:n p95_grid:n sms:n mean_ns:n graphs:n",
        "table",
    ),
    width=24,
    fields={
        "kernel": Field(width=300, fills=True),
        "gpu_s": Field("s", "GPU time", decimals=1),
        "p95_grid": Field(header="Blocks", decimals=0),
        "mean_ns": Field("ns"),
        "graphs": Field("percentunit", "In graphs", decimals=0),
    },
    empty="none, or a GPU model that is not known",
)

KERNELS = Dashboard(
    "drumline-kernels",
    "Kernels",
    "Where does GPU time go, how long do kernels take, and do their launches fill the GPU?",
    "kernel",
    ((FAMILY_TIME, RATE), (COUNTED, COPIED), (TOP,), (P95, BY_RANK), (SHAPES,), (SMALL,)),
    (*LABELLED, JOB, RUN, RANKS, FAMILIES, KERNEL),
    MARKS,
)
