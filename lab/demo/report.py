"""Prints the results of the demo: counts, verdicts, top kernels, rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from drumline.infra.clickhouse.kernel_names import kernel_name
from drumline.lab.evaluate.scoring import EvaluationReport, evaluate_phases
from drumline.lab.row_counts import RunQuery, StoredCount
from drumline.views.verdict.verdict_rows import VerdictRow

VERDICTS = """
SELECT first_step, last_step, rank, toInt8(severity) AS severity, cause, detail, lost_share
FROM stragglers WHERE run = {run:String}
"""
TOP_KERNELS = """
SELECT name, count() AS launches, sum(duration_ns) / 1e9 AS gpu_s, avg(duration_ns) / 1e3 AS mean_us,
       quantileExactInclusive(0.99)(duration_ns) / 1e3 AS p99_us
FROM kernels WHERE run = {run:String} GROUP BY name ORDER BY gpu_s DESC LIMIT 8
"""
LAUNCHES = """
SELECT rank, any(host) AS host, max(per_second) AS per_second, max(busy) AS busy
FROM (
    SELECT rank, any(host) AS host, window_start, sum(launches) / {window_s:Float64} AS per_second,
           sum(gpu_ns) / 1e9 / {window_s:Float64} AS busy
    FROM kernel_frequency WHERE run = {run:String} GROUP BY rank, window_start
)
GROUP BY rank ORDER BY rank
"""
# Non-overlapping windows only: hopping ones would count a copy twice.
BANDWIDTH = """
SELECT rank, kind, src_kind, dst_kind, sum(copies) AS copies, sum(bytes) / 1e9 AS gigabytes,
       sum(bytes) / sum(busy_ns) AS gb_per_s
FROM memcpy_bandwidth
WHERE run = {run:String} AND toUnixTimestamp64Nano(window_start) % toInt64({window_s:Float64} * 1e9) = 0
GROUP BY rank, kind, src_kind, dst_kind HAVING gigabytes >= 0.1 ORDER BY rank, gigabytes DESC
"""
MEMSET = 64
MEMORY = {0: "", 1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed"}


def verdicts(query: RunQuery, run: str, phases: Sequence[Mapping[str, Any]]) -> EvaluationReport:
    """Score the run's verdicts against the faults that the manifest lists."""
    rows = [
        VerdictRow(r["first_step"], r["last_step"], r["rank"], r["severity"], r["cause"], r["detail"], r["lost_share"])
        for r in query(VERDICTS, {"run": run})
    ]
    return evaluate_phases(phases, rows)


def _table(title: str, *columns: str, right: str = "") -> Table:
    """Return a narrow table. `right`: columns of numbers, separated by |."""
    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right.split("|") else "left", no_wrap=True)
    return table


def print_counts(console: Console, stored: list[StoredCount]) -> None:
    """Print published and stored rows by topic."""
    table = _table("Nothing lost, nothing doubled", "topic", "published", "stored", "", right="published|stored")
    for c in stored:
        table.add_row(c.topic, f"{c.published:,}", f"{c.stored:,}", "equal" if c.published == c.stored else "DIFFERENT")
    console.print(table)


def print_verdicts(console: Console, report: EvaluationReport) -> None:
    """Print injected and found stragglers by phase."""
    table = _table("Stragglers", "phase", "injected", "found", "lost", "", right="lost")
    for phase in report.phases:
        injected = " ".join([*(f"rank {rank}" for rank in phase.expected_ranks), *phase.accepted_causes[:1]])
        cause = [part for part in (phase.found_cause, phase.found_detail) if part]
        named = " ".join([*(f"rank {rank}" for rank in phase.found_ranks), *cause])
        lost = f"{phase.lost_share:.0%}" if phase.found_ranks else ""
        table.add_row(phase.phase, injected or "nothing", named or "nothing", lost, "right" if phase.right else "WRONG")
    console.print(table)


def print_kernels(console: Console, query: RunQuery, run: str) -> None:
    """Print the kernels with most GPU time."""
    table = _table(
        "Top kernels by GPU time", "kernel", "launches", "GPU s", "mean us", "p99 us",
        right="launches|GPU s|mean us|p99 us",
    )  # fmt: skip
    for r in query(TOP_KERNELS, {"run": run}):
        name = kernel_name(r["name"]).short
        table.add_row(name, f"{r['launches']:,}", f"{r['gpu_s']:.2f}", f"{r['mean_us']:.1f}", f"{r['p99_us']:.1f}")
    console.print(table)


def print_rates(console: Console, query: RunQuery, run: str, window_s: float) -> None:
    """Print kernel rates and copy bandwidths by rank."""
    values = {"run": run, "window_s": window_s}
    table = _table(
        f"Kernels, busiest {window_s:g} s", "rank", "host", "launches/s", "kernel s/s", right="launches/s|kernel s/s"
    )
    for r in query(LAUNCHES, values):
        table.add_row(str(r["rank"]), r["host"], f"{r['per_second']:,.0f}", f"{r['busy']:.2f}")
    console.print(table)
    table = _table(
        "Memcpy bandwidth", "rank", "copies", "memory", "GB", "GB/s while copying", right="copies|GB|GB/s while copying"
    )
    for r in query(BANDWIDTH, values):
        memory = " to ".join(part for part in (MEMORY.get(r["src_kind"], "?"), MEMORY.get(r["dst_kind"], "?")) if part)
        kind = f"memset {memory}" if r["kind"] == MEMSET else memory
        table.add_row(str(r["rank"]), f"{r['copies']:,}", kind, f"{r['gigabytes']:.1f}", f"{r['gb_per_s']:.1f}")
    console.print(table)
