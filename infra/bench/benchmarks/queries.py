"""The cookbook's questions, dashboards' statements and alert rules over many recorded kernels, in the engine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from drumline.infra.bench.benchmarks.sink import DISK_BAR, bytes_a_row
from drumline.infra.bench.direct_load import load, repeat
from drumline.infra.bench.result import Report
from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import Client
from drumline.infra.clickhouse.migrate import migrate
from drumline.infra.clickhouse.queries import queries
from drumline.infra.config.local_credentials import local_password
from drumline.infra.config.settings import Settings
from drumline.infra.grafana.catalog import statements
from drumline.infra.grafana.macros import ALL, Moment, Value, expand, expand_alert
from drumline.infra.grafana.provisioning.rules import rules
from drumline.infra.grafana.render.panel import POINTS
from drumline.infra.localstack.clickhouse.engine import temporary_engine
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.producers.replay.recording import Recording

JOB, OTHER, RUN, RANKS = "bench", "other", "r1", 16
COOKBOOK_BAR, DASHBOARD_BAR = 1.0, 0.2
#: What is chosen where a dashboard has no "All"; points of a panel as wide as a screen.
FIXED, SCREEN = {"job": JOB, "rank": "2"}, 1_800
Progress = Callable[[str], None]
Ask = Callable[[str, Mapping[str, str]], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Timed:
    """`seconds`: of each repetition, wall clock. `cpu_s`: of the engine, a repetition."""

    name: str
    seconds: tuple[float, ...]
    cpu_s: float

    @property
    def p95(self) -> float:
        return float(np.percentile(self.seconds, 95))


def bench_queries(folder: Path, rows: int, repeats: int = 7, progress: Progress = lambda _: None) -> Report:
    """Load at least `rows` kernels of a job of 16 ranks that ends now, and the recording once as another job; let
    merges finish; ask each question `repeats` times after once for warmth, as the reader, with two threads. Data lies
    in a temporary folder."""
    report = Report("queries", "", "none")
    with tempfile.TemporaryDirectory(prefix="drumline-bench-", ignore_cleanup_errors=True) as state:
        settings = ephemeral_settings(Path(state) / "state", log_level="WARNING")
        with temporary_engine(settings):
            client = clickhouse.connect(settings, timeout_s=600)
            migrate(client, settings)
            stored, span_s, until_ns = _fill(client, settings, folder, rows, progress)
            _settle(client, progress)
            each = bytes_a_row(client, settings.clickhouse.database, "kernels")
            database = settings.clickhouse.database
            with _asker(settings) as ask:
                cookbook = [
                    timed
                    for name, sql, values in _cookbook()
                    for timed in _timed(name, ask, repeats, sql, values, report, progress)
                ]
                panels = [
                    timed
                    for name, sql in dashboard_statements(until_ns // 1_000_000).items()
                    for timed in _timed(name, ask, repeats, sql, {}, report, progress)
                ]
                alerts = [
                    timed
                    for name, sql in rule_statements(until_ns // 1_000_000).items()
                    for timed in _timed(name, ask, repeats, sql, {}, report, progress)
                ]
            disk = _disk(client, database)
    report.data = f"{stored:,} recorded kernels, {RANKS} ranks, {span_s / 60:.0f} minutes"
    _add(report, "cookbook", cookbook, COOKBOOK_BAR)
    _add(report, "dashboards", panels, DASHBOARD_BAR)
    _add(report, "alert rules", alerts, DASHBOARD_BAR)
    failed = sum(note.startswith("FAILED") for note in report.notes)
    report.add("queries that failed", failed, "", bar=0, most=True)
    report.add("bytes a row on disk, kernels", each, "B", bar=DISK_BAR, most=True)
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
    """(kernels stored of JOB, seconds that they span, when they end; ns)."""
    progress("loading the recording")
    recording = Recording(folder, ranks=RANKS)
    period = recording.period_ns
    times = max(1, -(-rows // next(n for topic, n in recording.rows.items() if topic == "gpu.kernel.v1")))
    until = time.time_ns()
    shift = until - recording.first_ns - times * period
    del recording
    seed = load(client, settings, folder, job=OTHER, run=RUN, ranks=RANKS, shift_ns=shift)
    steps = clickhouse.rows(client, f"SELECT max(step) + 1 AS n FROM {settings.clickhouse.database}.steps")[0]["n"]

    def tell(done: int) -> None:
        progress(f"{done} of {times} repetitions")

    repeat(client, settings.clickhouse.database, OTHER, JOB, times, period, int(steps), tell)
    return times * seed["gpu.kernel.v1"], times * period / 1e9, until


def _settle(client: Client, progress: Progress, most_s: float = 120.0) -> None:
    progress("waiting for merges")
    until = time.monotonic() + most_s
    while time.monotonic() < until and clickhouse.rows(client, "SELECT count() AS n FROM system.merges")[0]["n"]:
        time.sleep(0.5)


def _disk(client: Client, database: str) -> dict[str, float]:
    """Bytes of the largest other tables, in % of those of `kernels`."""
    found = clickhouse.rows(
        client,
        "SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts "
        f"WHERE active AND database = '{database}' GROUP BY table ORDER BY bytes DESC",
    )
    sizes = {str(row["table"]): int(row["bytes"]) for row in found}
    kernels = sizes.pop("kernels")
    return {name: 100 * size / kernels for name, size in list(sizes.items())[:6]}


@contextmanager
def _asker(settings: Settings) -> Iterator[Ask]:
    """A function that asks once: (seconds, CPU seconds of the engine). Grafana's user: its quota takes so many."""
    reader = {"reader": "grafana", "reader_password": local_password(settings, "grafana")}
    grafana = settings.model_copy(update={"clickhouse": settings.clickhouse.model_copy(update=reader)})
    client = clickhouse.connect(grafana, reader=True, database=settings.clickhouse.database)
    engines = [
        child for child in psutil.Process().children(recursive=True) if "engine_main" in " ".join(child.cmdline())
    ]

    def cpu() -> float:
        return sum(sum(engine.cpu_times()[:2]) for engine in engines)

    def ask(sql: str, values: Mapping[str, str]) -> tuple[float, float]:
        before, started = cpu(), time.perf_counter()
        client.raw_query(sql, parameters=dict(values), fmt="Native", settings={"max_threads": 2})
        return time.perf_counter() - started, cpu() - before

    yield ask
    client.close()


def _timed(
    name: str, ask: Ask, repeats: int, sql: str, values: Mapping[str, str], report: Report, progress: Progress
) -> list[Timed]:
    """One Timed; none where the question fails: the report says so."""
    progress(name)
    try:
        ask(sql, values)
        took = [ask(sql, values) for _ in range(repeats)]
    except Exception as error:
        report.notes.append(f"FAILED {name}: {clickhouse.failure(error)}")
        return []
    return [Timed(name, tuple(wall for wall, _ in took), sum(cpu for _, cpu in took) / repeats)]


def _cookbook() -> Iterator[tuple[str, str, Mapping[str, str]]]:
    ours = {"job": JOB, "other": OTHER}
    for query in queries().values():
        example = {name: ours.get(name, value) for name, value in query.example.items()}
        yield query.name, query.sql, query.values(example)


def dashboard_statements(now_ms: int) -> dict[str, str]:
    """Name -> statement as ClickHouse gets it, of every panel, variable and annotation, each text once: over the
    dashboard's default range up to `now_ms`, with the choices that it opens with."""
    found = dict[str, str]()
    for statement in statements():
        board, panel = statement.dashboard, statement.panel
        chosen: dict[str, Value] = {v.name: ALL if v.every else FIXED.get(v.name, v.default) for v in board.variables}
        span_ms = _span_ms(board.start)
        points = POINTS if panel is None or panel.kind in ("timeseries", "heatmap") else SCREEN
        least = _length_ms(panel.min_interval) if panel and panel.min_interval else 1_000
        at = Moment(now_ms - span_ms, now_ms, max(span_ms // points, least), chosen)
        name = statement.id if statement.kind == "panel" else f"{statement.id} ({statement.kind})"
        found.setdefault(expand(statement.sql, at), name)
    return {name: text for text, name in found.items()}


def rule_statements(now_ms: int) -> dict[str, str]:
    """Title -> the statement that decides, of every alert rule, over its range up to `now_ms`."""
    return {
        f"rule {rule.title}": expand_alert(rule.values[0].sql, Moment(now_ms - rule.range_s * 1_000, now_ms))
        for rule in rules()
    }


def _span_ms(since: str) -> int:
    """Of `now-6h`. Raises ValueError on other forms."""
    if not since.startswith("now-"):
        raise ValueError(f"a default range of {since}: now-<number><s|m|h|d> is understood")
    return _length_ms(since.removeprefix("now-"))


def _length_ms(text: str) -> int:
    """Of `10s`. Raises KeyError or ValueError on other forms."""
    return int(text[:-1]) * {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[text[-1]]


def _add(report: Report, title: str, timed: list[Timed], bar: float) -> None:
    if not timed:
        return
    worst = sorted(timed, key=lambda each: -each.p95)
    report.add(f"{title}: {len(timed)} queries, slowest p95", worst[0].p95, "s", bar=bar, most=True)
    report.add(
        f"{title}: p95 over all repetitions", float(np.percentile([s for t in timed for s in t.seconds], 95)), "s"
    )
    report.add(f"{title}: most CPU", max(each.cpu_s for each in timed), "s", bar=bar, most=True)
    for each in worst[:8]:
        report.add(f"{each.name}: p95", each.p95, "s", bar=bar, most=True)
        report.add(f"{each.name}: CPU", each.cpu_s, "s")
