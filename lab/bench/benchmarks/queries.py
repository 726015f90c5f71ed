"""Measures the cookbook's queries, the dashboards' statements and the alert rules over many recorded kernels."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import Client
from drumline.infra.clickhouse.migrate import migrate
from drumline.infra.clickhouse.queries import queries
from drumline.infra.config.settings import Settings
from drumline.infra.grafana.catalog import statements
from drumline.infra.grafana.provisioning.rules import rules
from drumline.infra.grafana.render.panel import POINTS
from drumline.infra.localstack.clickhouse.engine import temporary_engine
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.lab.bench.benchmarks.sink import DISK_TARGET, bytes_a_row
from drumline.lab.bench.direct_load import JobCopy, Repetition, load, repeat
from drumline.lab.bench.grafana_macros import ALL_VALUES, PanelRequest, Value, expand, expand_alert
from drumline.lab.bench.query_times import ProgramTimer, QueryTimes, Timer, query_runner
from drumline.lab.bench.result import BenchReport, Progress
from drumline.lab.bench.wide_load import widen
from drumline.producers.replay.recording import RecordedJob
from drumline.schemas.topics import Topic

JOB, OTHER, RUN, RANKS, ROWS = "bench", "other", "r1", 16, 100_000_000
COOKBOOK_TARGET_S, DASHBOARD_TARGET_S = 1.0, 0.2
#: Of every query, `drumline top` and the report, where a job has more ranks than RANKS; rows of its steps, at least.
WIDE_TARGET_S, WIDE_ROWS = 2.0, 10_000_000
#: Choices where a dashboard has no "All"; points of a panel as wide as a screen.
FIXED, SCREEN = {"job": JOB, "rank": "2"}, 1_800


def bench_queries(
    folder: Path, rows: int | None = None, repeats: int = 7, progress: Progress = lambda _: None, ranks: int = RANKS
) -> BenchReport:
    """Run each query `repeats` times after one warm-up, as the reader, with two threads.

    Loads at least `rows` kernels of a job of 16 ranks that ends now, and the recording once as another job; waits for
    merges. With more ranks the job has no raw kernels and copies, and `rows` counts steps. Data lies in a temporary
    folder.
    """
    report = BenchReport("queries", "", "none")
    with tempfile.TemporaryDirectory(prefix="drumline-bench-", ignore_cleanup_errors=True) as state:
        settings = ephemeral_settings(Path(state) / "state", log_level="WARNING")
        with temporary_engine(settings):
            client = clickhouse.connect(settings, timeout_s=600)
            migrate(client, settings)
            database, wide = settings.clickhouse.database, ranks > RANKS
            if wide:
                stored, span_s, until_ns = _fill_wide(client, settings, folder, rows or WIDE_ROWS, ranks, progress)
            else:
                stored, span_s, until_ns = _fill(client, settings, folder, rows or ROWS, progress)
            _settle(client, progress)
            row_bytes = bytes_a_row(client, database, "kernels")
            with query_runner(settings) as run_query:
                timer = Timer(run_query, repeats, report, progress)
                now_ms = until_ns // 1_000_000
                cookbook = timer.times("cookbook", [*_cookbook()])
                panels = timer.times("panels", [(name, sql, {}) for name, sql in dashboard_statements(now_ms).items()])
                alerts = timer.times("rules", [(name, sql, {}) for name, sql in rule_statements(now_ms).items()])
            disk = _disk(client, database)
            programs = ProgramTimer(settings, repeats, report, progress).times(_programs()) if wide else []
    rows_text = "steps, no raw kernels" if wide else "recorded kernels"
    report.data = f"{stored:,} {rows_text}, {ranks:,} ranks, {span_s / 60:.0f} minutes"
    _add(report, "cookbook", cookbook, WIDE_TARGET_S if wide else COOKBOOK_TARGET_S)
    _add(report, "dashboards", panels, WIDE_TARGET_S if wide else DASHBOARD_TARGET_S)
    _add(report, "alert rules", alerts, WIDE_TARGET_S if wide else DASHBOARD_TARGET_S)
    _add(report, "programs, from start to last line", programs, WIDE_TARGET_S, shown=len(programs))
    failed = sum(note.startswith("FAILED") for note in report.notes)
    report.add("queries that failed", failed, "", target=0, at_most=True)
    report.add("bytes a row on disk, kernels", row_bytes, "B", target=DISK_TARGET, at_most=True)
    for name, share in disk.items():
        report.add(f"{name}: space beside kernels", share, "%")
    report.notes.append(
        "The recording went through the stream stages and the sink's block writer once, and was repeated in the "
        "engine, later each time; rollups counted every repetition."
    )
    report.notes.append(
        "p95 of the repetitions of each question, wall clock at the client, caches warm, two threads, beside whatever "
        "else the machine did (load below). CPU is the engine's, all threads together: within the target, one core "
        "does."
    )
    return report


def _fill(client: Client, settings: Settings, folder: Path, rows: int, progress: Progress) -> tuple[int, float, int]:
    """Load the data; return (kernels stored of JOB, seconds that they span, time of their end in ns)."""
    progress("loading the recording")
    recording = RecordedJob(folder, ranks=RANKS)
    period = recording.period_ns
    times = max(1, -(-rows // next(n for topic, n in recording.rows.items() if topic == Topic.KERNEL)))
    until = time.time_ns()
    shift = until - recording.first_ns - times * period
    del recording
    seed = load(client, settings, JobCopy(folder, OTHER, RUN, RANKS, shift))
    steps = clickhouse.rows(client, f"SELECT max(step) + 1 AS n FROM {settings.clickhouse.database}.steps")[0]["n"]

    def report_progress(done: int) -> None:
        progress(f"{done} of {times} repetitions")

    repetition = Repetition(OTHER, JOB, times, period, int(steps))
    repeat(client, settings.clickhouse.database, repetition, report_progress)
    return times * seed[Topic.KERNEL], times * period / 1e9, until


def _fill_wide(
    client: Client, settings: Settings, folder: Path, rows: int, ranks: int, progress: Progress
) -> tuple[int, float, int]:
    """Load a job of `ranks` ranks; return as `_fill` does, steps in place of kernels."""
    progress("loading the recording")
    recording = RecordedJob(folder)
    recorded, period = len(recording.rank_sources), recording.period_ns
    times = max(1, -(-rows // (recording.rows[Topic.STEP] * (ranks // recorded))))
    until = time.time_ns()
    shift = until - recording.first_ns - times * period
    del recording
    load(client, settings, JobCopy(folder, OTHER, RUN, recorded, shift))
    database = settings.clickhouse.database
    steps = clickhouse.rows(client, f"SELECT max(step) + 1 AS n FROM {database}.steps")[0]["n"]
    copies = Repetition(OTHER, JOB, times, period, int(steps))
    widen(client, database, copies, recorded, ranks, progress)
    progress("merging verdicts")
    # A sink stores windows in their order, so that parts do not overlap; here ranks came by turns.
    clickhouse.command(client, f"OPTIMIZE TABLE {database}.stragglers_versions FINAL")
    stored = clickhouse.rows(client, f"SELECT count() AS n FROM {database}.steps WHERE job = '{JOB}'")[0]["n"]
    return int(stored), times * period / 1e9, until


def _settle(client: Client, progress: Progress, most_s: float = 120.0) -> None:
    progress("waiting for merges")
    until = time.monotonic() + most_s
    while time.monotonic() < until and clickhouse.rows(client, "SELECT count() AS n FROM system.merges")[0]["n"]:
        time.sleep(0.5)


def _disk(client: Client, database: str) -> dict[str, float]:
    """Return the bytes of the largest other tables, in % of those of `kernels`."""
    parts = clickhouse.rows(
        client,
        "SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts "
        f"WHERE active AND database = '{database}' GROUP BY table ORDER BY bytes DESC",
    )
    sizes = {str(row["table"]): int(row["bytes"]) for row in parts}
    kernels = sizes.pop("kernels")
    return {name: 100 * size / kernels for name, size in list(sizes.items())[:6]}


def _cookbook() -> Iterator[tuple[str, str, Mapping[str, str]]]:
    parameters = {"job": JOB, "other": OTHER}
    for query in queries().values():
        example = {name: parameters.get(name, value) for name, value in query.example.items()}
        yield query.name, query.sql, query.values(example)


def _programs() -> list[list[str]]:
    """Return the commands that a person types about a job."""
    return [
        ["top", "--once", "--job", JOB],
        ["top", "--once", "--json", "--job", JOB],
        ["report", "--job", JOB],
        ["explain", JOB],
        ["sql", "compare-runs", "--job", JOB, "--other", OTHER],
        ["sql", "compare-steps", "--job", JOB, "--other", OTHER],
        ["sql", "step-times", "--job", JOB],
        ["sql", f"SELECT rank, avg(gpu_duration_ns) AS ns FROM steps WHERE job = '{JOB}' GROUP BY rank ORDER BY ns"],
    ]


def dashboard_statements(now_ms: int) -> dict[str, str]:
    """Return name -> statement of every panel, variable and annotation, as ClickHouse gets it; each text once.

    Statements cover the dashboard's default range up to `now_ms`, with its default choices.
    """
    names = dict[str, str]()
    for statement in statements():
        board, panel = statement.dashboard, statement.panel
        chosen: dict[str, Value] = {
            v.name: ALL_VALUES if v.has_all else FIXED.get(v.name, v.default) for v in board.variables
        }
        span_ms = _span_ms(board.start)
        points = POINTS if panel is None or panel.kind in ("timeseries", "heatmap") else SCREEN
        least = _length_ms(panel.min_interval) if panel and panel.min_interval else 1_000
        at = PanelRequest(now_ms - span_ms, now_ms, max(span_ms // points, least), chosen)
        name = statement.id if statement.kind == "panel" else f"{statement.id} ({statement.kind})"
        names.setdefault(expand(statement.sql, at), name)
    return {name: text for text, name in names.items()}


def rule_statements(now_ms: int) -> dict[str, str]:
    """Return title -> deciding statement of every alert rule, over its range up to `now_ms`."""
    return {
        f"rule {rule.title}": expand_alert(rule.values[0].sql, PanelRequest(now_ms - rule.range_s * 1_000, now_ms))
        for rule in rules()
    }


def _span_ms(since: str) -> int:
    """Return the length of a range such as `now-6h`. Raises ValueError on other forms."""
    if not since.startswith("now-"):
        raise ValueError(f"a default range of {since}: now-<number><s|m|h|d> is understood")
    return _length_ms(since.removeprefix("now-"))


def _length_ms(text: str) -> int:
    """Return the length of a text such as `10s`. Raises KeyError or ValueError on other forms."""
    return int(text[:-1]) * {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[text[-1]]


def _add(report: BenchReport, title: str, timed: list[QueryTimes], target_s: float, shown: int = 8) -> None:
    if not timed:
        return
    worst = sorted(timed, key=lambda times: -times.p95)
    report.add(f"{title}: {len(timed)} queries, slowest p95", worst[0].p95, "s", target=target_s, at_most=True)
    report.add(
        f"{title}: p95 over all repetitions", float(np.percentile([s for t in timed for s in t.seconds], 95)), "s"
    )
    report.add(f"{title}: most CPU", max(times.cpu_s for times in timed), "s", target=target_s, at_most=True)
    for times in worst[:shown]:
        report.add(f"{times.name}: p95", times.p95, "s", target=target_s, at_most=True)
        report.add(f"{times.name}: CPU", times.cpu_s, "s")
