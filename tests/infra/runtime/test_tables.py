"""Every table that a command prints, at 80 columns without colours and in a pipe: no value is cut, no column lost."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.table import Table

from drumline.cli.operate import audit, dlq, limits, policy, topics
from drumline.cli.query import capture, evaluate, pull, table_verdicts, verdict
from drumline.cli.record import replay
from drumline.cli.stack import status
from drumline.infra.kafka.verification import ProducerAccount
from drumline.infra.runtime import tables
from drumline.infra.runtime.terminal import terminal_console
from drumline.lab.bench import render
from drumline.lab.bench.result import BenchReport
from drumline.lab.chaos import report as chaos_report
from drumline.lab.demo import report as demo_report
from drumline.lab.evaluate import comparison_table
from drumline.lab.evaluate.scoring import EvaluationReport, Phase
from drumline.lab.row_counts import StoredCount
from drumline.producers.foreign.recognise import Format
from drumline.producers.replay.replay import ReplaySummary
from drumline.schemas.control import Control
from drumline.sinks.audit.report import AuditReport, TopicAccount
from drumline.streams.core.thresholds import StragglerConfig
from drumline.views.control.pulls import RankAnswer
from drumline.views.control.windows import RankState
from drumline.views.sqlshell import output
from drumline.views.verdict.evaluation import evaluate_job
from drumline.views.verdict.recorded_job import read_job
from drumline.views.verdict.verdict_rows import VerdictRow

ROOT, TABLE = Path(__file__).parents[3], re.compile(r"\bTable\(")
#: Modules that may print tables.
PRINTING = [path for folder in ("cli", "lab", "views", "infra") for path in (ROOT / folder).rglob("*.py")]
LONG = "a-topic-with-a-name-that-is-longer-than-half-a-terminal.dlq"
KERNEL = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT_splitK_TNT"
PROSE = "a sentence of more words than fit into one line beside all that other columns of this table have to state"
NUMBER = 123_456_789_012
PHASE = Phase(
    KERNEL,
    True,
    0,
    10,
    2,
    0,
    [],
    [1, 2],
    [1, 2, 3],
    ["slow_compute", "unbalanced_batch"],
    "slow_compute",
    "more_work",
    {},
    0.4,
)
REPORT = EvaluationReport([PHASE] * 2, 1)


def sql(columns):
    wide = columns > 3
    names = [f"column_{i}" for i in range(columns)]
    row = [str(NUMBER + i) for i in range(len(names) - 1)] + [PROSE if wide else "a\\nb"]
    output._show("".join("\t".join(line) + "\n" for line in (names, row, row)).encode())


def dead_letters(monkeypatch):
    group = {"topic": LONG, "reason": "ClickHouseRejected", "by": "drumline-streams", "letters": NUMBER}
    group |= {
        "records": NUMBER,
        "bytes": NUMBER,
        "first": "2026-01-02T03:04:05+00:00",
        "last": "2026-01-02T03:04:05+00:00",
    }
    monkeypatch.setattr("drumline.infra.kafka.tail.without_empty", lambda *_: [])
    groups = [SimpleNamespace(as_json=lambda: group)]
    monkeypatch.setattr("drumline.views.deadletters.listing.grouped", lambda _: (groups, {LONG: 3}))
    dlq.list_dead_letters(as_json=False)


def topic_steps(monkeypatch):
    step = SimpleNamespace(topic=LONG, action="error", drift={"retention.ms": ("1", "2")}, problem=PROSE,
                           remedy="")  # fmt: skip
    admin = SimpleNamespace(existing=lambda _: {})
    monkeypatch.setattr("drumline.infra.kafka.topic_admin.TopicsAdmin", lambda _: admin)
    monkeypatch.setattr("drumline.infra.kafka.topic_admin.plan", lambda *_: [step])
    with pytest.raises(Exception, match="1"):
        topics.apply(dry_run=True, partitions=None, as_json=False)
    topics.list_topics(as_json=False)
    account = ProducerAccount(LONG, LONG, LONG, LONG, 7, LONG, 12_345, 12, 3, 4, PROSE)
    checked = SimpleNamespace(add=None, accounts=lambda _: [account])
    monkeypatch.setattr("drumline.infra.kafka.verification.partition_numbers", lambda *_: {})
    monkeypatch.setattr("drumline.infra.kafka.verification.newest_records", lambda *_: [])
    monkeypatch.setattr("drumline.infra.kafka.verification.Verification", lambda *_: checked)
    with pytest.raises(Exception, match="1"):
        topics.verify(job="", last=10, as_json=False)


def limit_rows(monkeypatch):
    row = {
        "name": "stalled_s",
        "value": 3600.0,
        "job": LONG,
        "label": "team=a",
        "changed": "2026-01-02 03:04:05",
        "note": PROSE,
    }
    monkeypatch.setattr("drumline.infra.grafana.limit_rows.current", lambda _: [row])
    monkeypatch.setattr(limits, "_connected", lambda *_, **__: pytest.MonkeyPatch.context())
    limits.show(as_json=False)
    limits.list_limits()


def bench(_):
    report = BenchReport("sink", "demo", "inserts")
    report.add(PROSE, NUMBER, "rows per CPU second", NUMBER, target=1.0)
    render.show(report, terminal_console())


def chaos(_):
    report = chaos_report.ChaosReport(1)
    line = {
        "kills": 1,
        "while_recovering": 2,
        "recovery_p50_s": 3.5,
        "recovery_max_s": NUMBER,
        "halted_s": 4,
        "in_flight": {},
    }
    report.targets = lambda: {"a worker with a long name": line}
    chaos_report.show(report, terminal_console())


def replayed(_):
    replay._print(
        ReplaySummary("j" * 90, "r", 1, 1, {LONG: NUMBER}, {LONG: NUMBER}, 0, 0, False, "", 0, 1, 1.0, 0, 0, 0, 0)
    )


def stack_status(_):
    entry = {"pid": 1234567, "rss_mib": 123.0, "uptime_s": 123456.0, "answers": True, "restarts": 3, "orphan": True}
    names = dict.fromkeys(("supervisor", "broker", "broker2", "engine"), entry)
    addresses = {"kafka": ",".join(f"127.0.0.1:1909{i}" for i in range(5)), "clickhouse_http": "http://127.0.0.1:18123"}
    addresses["clickhouse_native"] = "127.0.0.1:19000"
    rest = {"running": True, "logs": "/l", "full": [], "password_files": {}}
    status.show({**rest, "processes": names, "addresses": addresses, "page": "http://127.0.0.1:18080"})


def demo(_):
    console, row = terminal_console(), {"rank": 1, "host": LONG, "per_second": 1e9, "busy": 1.0, "copies": NUMBER}
    row |= {"gigabytes": 1.5, "gb_per_s": 2.5, "kind": 0, "src_kind": 1, "dst_kind": 2}
    row |= {"name": KERNEL, "launches": NUMBER, "gpu_s": 1.5, "mean_us": 2.5, "p99_us": 3.5}
    demo_report.print_counts(console, [StoredCount(LONG, NUMBER, NUMBER)])
    demo_report.print_verdicts(console, REPORT)
    demo_report.print_kernels(console, lambda *_: [row], "r")
    demo_report.print_rates(console, lambda *_: [row], "r", 5.0)


def captured(_):
    window = Control("capture-j", "window", "", first_step=1, last_step=2)
    capture._print([RankState(1, LONG, "armed", "", NUMBER, NUMBER, NUMBER, 3)], window, "")


def policies(monkeypatch):
    control = Control(f"policy-{LONG}", "policy", "always", LONG, LONG, LONG, (1, 2), 10, 20, until_ns=1)
    monkeypatch.setattr("drumline.views.control.control_topic.in_force", lambda *_: [control])
    policy.show(as_json=False)


def table_of_operations(monkeypatch):
    row = VerdictRow(0, NUMBER, 12, 3, "slow_compute", "same_work", 0.4)
    result = SimpleNamespace(findings=[row], rows=[row], not_evaluated=[], window_steps=4)
    result.described = lambda rank: f"rank {rank} (recorded as 1234), stage 12, replica 34"
    result.unrecorded_shares = dict
    monkeypatch.setattr("drumline.lab.evaluate.operation_verdicts.evaluate_operations", lambda *_: result)
    table_verdicts.print_verdicts(Path(f"{KERNEL}.parquet"), None, None, as_json=False)


def compared(_):
    results = [SimpleNamespace(method=f"m{i}", source="s", lacks="", report=REPORT, victims=1) for i in range(6)]
    terminal_console().print(comparison_table.table(results, KERNEL))


def verdict_of_traces(_):
    files = sorted((ROOT / "tests/data/foreign/hta").glob("*.json.gz"))
    verdict._print(evaluate_job(read_job(files, Format.KINETO, LONG), StragglerConfig()), 1.0)


#: Module that builds tables -> what prints them with values as long as they come.
CASES = {
    "lab/bench/render.py": bench,
    "lab/chaos/report.py": chaos,
    "cli/operate/audit.py": lambda _: audit._print(AuditReport([TopicAccount(LONG, *[NUMBER] * 9)])),
    "cli/operate/dlq.py": dead_letters,
    "cli/operate/limits.py": limit_rows,
    "cli/operate/topics.py": topic_steps,
    "cli/operate/policy.py": policies,
    "cli/query/capture.py": captured,
    "cli/query/pull.py": lambda _: pull._print(LONG, [RankAnswer(7, LONG, "done", PROSE)]),
    "cli/query/table_verdicts.py": table_of_operations,
    "cli/query/evaluate.py": lambda _: evaluate._print(REPORT, KERNEL, 6),
    "cli/query/verdict.py": verdict_of_traces,
    "cli/record/replay.py": replayed,
    "cli/stack/status.py": stack_status,
    "lab/demo/report.py": demo,
    "lab/evaluate/comparison_table.py": compared,
    "views/sqlshell/output.py": lambda _: sql(12),
}


@pytest.mark.parametrize("is_terminal", [True, False], ids=["80 columns", "pipe"])
@pytest.mark.parametrize("module", CASES)
def test_no_value_of_a_table_is_cut(module, is_terminal, monkeypatch, capsys):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(is_terminal)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    cells, titles = [], set()
    arrange = tables.arranged

    def seen(table, console):
        titles.add(tuple(str(column.header) for column in table.columns))
        for column in table.columns:
            cells.extend(line for text in tables._texts(column, console) for line in text.split("\n"))
        return arrange(table, console)

    monkeypatch.setattr(tables, "arranged", seen)
    CASES[module](monkeypatch)
    text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert "…" not in text
    if is_terminal:
        assert len(titles) >= len(TABLE.findall((ROOT / module).read_text())), "a table of this module has no case"
        assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
        assert cells
    solid = "".join(re.split(r"[\s│┃|]+", text))
    for cell in cells:
        parts = [cell] if not is_terminal else cell.split()
        for part in parts:
            if len(part) < tables.LONG or not is_terminal:
                assert part in text, f"{part!r} is cut"
            else:  # continued on the next line
                assert part[: tables.LONG // 2] in text
                assert part[-6:] in solid


def test_every_table_of_a_command_has_its_case():
    building = {str(path.relative_to(ROOT)) for path in PRINTING if TABLE.search(path.read_text())}
    # The first is covered by test_top.py, the last is not printed.
    uncovered = {"views/top/view.py", "infra/runtime/tables.py", "lab/bench/processes/stream_child.py"}
    assert building - uncovered == set(CASES)
    silent = [path for name in ("producers", "streams", "sinks", "schemas") for path in (ROOT / name).rglob("*.py")]
    assert [path for path in silent if "rich.table" in path.read_text()] == []
    consoles = {str(path.relative_to(ROOT)) for path in PRINTING if re.search(r"\bConsole\(", path.read_text())}
    assert consoles <= {"infra/runtime/terminal.py", "infra/localstack/kafka/jars.py"}, (
        "terminal_console() cuts no table"
    )


@pytest.mark.parametrize(("width", "is_table"), [(40, False), (80, True), (200, True)])
def test_prose_is_wrapped_and_what_is_still_too_wide_becomes_lines(width, is_table, monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    table = Table("name", "number", "note")
    table.columns[1].justify = "right"
    table.add_row("a" * 20, str(NUMBER), PROSE)
    terminal_console(width=width).print(table)
    text = capsys.readouterr().out
    assert ("row 1" in text) != is_table
    assert str(NUMBER) in text
    assert set(PROSE.split()) <= set(re.split(r"[\s│┃|]+", text))


def test_a_table_of_numbers_by_name_is_printed_in_parts(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    table = Table(box=None, pad_edge=False)
    table.add_column("topic")
    for index in range(9):
        table.add_column(f"column {index}", justify="right")
    table.add_row("gpu.kernel.v1", *(str(NUMBER + index) for index in range(9)))
    terminal_console(width=80).print(table)
    rows = [line for line in capsys.readouterr().out.splitlines() if "gpu.kernel.v1" in line]
    assert len(rows) == 3
    assert all(str(NUMBER + index) in "".join(rows) for index in range(9))


@pytest.mark.parametrize("columns", [1, 3, 12, 34, 60])
def test_a_row_of_any_number_of_columns_is_whole_on_80_columns(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    names, row = [f"column_{i}" for i in range(columns)], [str(NUMBER + i) for i in range(columns)]
    output._show("".join("\t".join(line) + "\n" for line in (names, row)).encode())
    shown = set(re.split(r"[\s│┃]+", re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)))
    assert {*names, *row} <= shown
