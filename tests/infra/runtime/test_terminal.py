"""Stored names reach a terminal without the sequences that steer it."""

import ast
import io
import sys
from pathlib import Path

import pytest
import structlog
from rich.table import Table
from rich.text import Text

import drumline
from drumline.cli.operate.audit import _print as print_report
from drumline.infra.runtime.terminal import LAYOUT, echo, escape_controls, terminal_console, write_stream
from drumline.sinks.audit.report import AuditReport, Finding

ROOT = Path(drumline.__file__).parent
#: Title, colour, clear screen, C1's CSI, carriage return, NUL, right-to-left override, isolate, a lone surrogate.
HOSTILE = "\x1b]0;title\x07\x1b[31mred\x1b[2J\x9b31m\rx\x00\u202e\u2066\ud800"


class Terminal(io.TextIOWrapper):
    """Standard output that is a terminal, or not."""

    def __init__(self, raw, terminal):
        super().__init__(raw, encoding="utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self):
        return self._terminal


def test_c0_c1_and_marks_of_writing_direction_are_escaped_and_text_is_not():
    assert escape_controls(HOSTILE) == (r"\x1b]0;title\x07\x1b[31mred\x1b[2J\x9b31m\rx\x00\u202e\u2066\ud800")
    assert escape_controls("größe 日本 🚀 a\\b\t\n", LAYOUT) == "größe 日本 🚀 a\\b\t\n"


@pytest.mark.parametrize("err", [False, True])
def test_a_message_cannot_steer_the_terminal(capsys, err):
    echo(f"no job {HOSTILE}", err=err)
    assert capsys.readouterr()[err] == f"no job {escape_controls(HOSTILE)}\n"


def test_a_table_keeps_its_own_styles_and_not_those_of_its_cells():
    out = io.StringIO()
    console = terminal_console(file=out, force_terminal=True, width=200, color_system="standard")
    table = Table()
    table.add_column(Text(HOSTILE))
    table.add_row(Text(HOSTILE, style="red"), HOSTILE)
    console.print(table, HOSTILE)
    shown = out.getvalue()
    assert "\x1b[31m" in shown, "the style of the cell"
    for raw in ("\x1b]0;", "\x1b[31mred", "\x1b[2J", "\x9b", "\r", "\x00", "\u202e", "\u2066"):
        assert raw not in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_a_streamed_result_is_escaped_on_a_terminal_only(monkeypatch, terminal):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(raw, terminal))
    data = "größe\t日本\n\x1b]0;title\x07\u202e\n".encode()
    write_stream([data[:3], data[3:9], data[9:], b"\xff"])
    shown = raw.getvalue()
    assert shown == ("größe\t日本\n\\x1b]0;title\\x07\\u202e\n\ufffd".encode() if terminal else data + b"\xff")


def test_log_lines_for_people_are_escaped():
    from drumline.infra.telemetry.logging import escape_event

    event = escape_event(None, "info", {"event": f"cannot read {HOSTILE}", "job": HOSTILE, "rows": 3})
    line = structlog.dev.ConsoleRenderer(colors=False)(None, "info", event)
    assert "\x1b" not in line
    assert "\u202e" not in line


@pytest.mark.parametrize("folder", ["cli", "views", "lab/demo", "lab/evaluate", "infra/grafana"])
def test_commands_write_text_by_this_module_only(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in (
                    "print",
                    "typer.echo",
                    "click.secho",
                    "Console",
                    "sys.stdout.write",
                    "sys.stdout.buffer.write",
                ), (  # fmt: skip
                    f"{path.relative_to(ROOT)}:{node.lineno}: {called} writes stored names as they are"
                )


def test_an_audit_prints_names_of_jobs_as_they_are(capsys):
    """Rich takes brackets for markup: such a name must neither end the command nor forge its result."""
    name = "[/x] [bold green]clean[/]"
    dropped = [{"topic": "t", "dropped": 1, "of_job": name}]
    print_report(AuditReport(findings=[Finding("lost", name, name)], dropped=dropped))
    text = " ".join(capsys.readouterr().out.split())
    assert text.count(name) == 3
