"""The interactive `drumline sql`: completion, lines that run, errors that do not end it, a private history."""

from __future__ import annotations

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from drumline.infra.clickhouse.queries import queries
from drumline.views.sqlshell.completion import Catalogue, completions
from drumline.views.sqlshell.interactive import is_whole, loop, prompt_session, run_line
from drumline.views.sqlshell.request import BadRequest

CATALOGUE = Catalogue(
    queries(), {"steps": ["job", "step"], "kernels": ["job", "kernel_id", "name"]}, ["count", "quantileExact"]
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("straggler", ["stragglers", "straggler-cost"]),
        ("around-verdict --r", ["--rank", "--run"]),
        ("around-verdict --rank 2 --ra", []),
        ("stragglers --a", ["--all-runs"]),
        ("jobs --a", []),
        ("\\d ker", ["kernels"]),
        ("help top-k", ["top-kernels"]),
        ("SELECT count() FROM st", ["steps"]),
        ("SELECT steps.s", ["step"]),
        ("SELECT ste", ["step", "steps"]),
        ("SELECT kern FROM steps WHERE ke", ["kernels"]),
        ("SELECT quantileE", ["quantileExact("]),
        ("sel", ["SELECT"]),
        ("SELECT ", []),
    ],
)
def test_names_are_completed_where_they_fit(text, names):
    assert sorted(completions(text, CATALOGUE)[1]) == sorted(names)


@pytest.mark.parametrize(
    ("text", "whole"),
    [("SELECT 1", False), ("SELECT 1;", True), ("\\q", True), ("stragglers --job x", True), ("help", True), ("", True)],
)
def test_a_statement_goes_on_until_its_semicolon(text, whole):
    assert is_whole(text) == whole


def test_lines_are_statements_questions_and_commands(capsys):
    requests = []
    for line in ("SELECT 1;", "top-kernels --job 'a b' --all-runs;", "\\d steps", "help", "stragglers --help"):
        assert run_line(line, requests.append)
    assert [request.query.name for request in requests] == ["the query", "top-kernels", "the query"]
    assert (requests[1].given, requests[1].all_runs) == ({"job": "a b"}, True)
    assert requests[2].given == {"table": "steps"}
    assert "Ctrl-D ends" in capsys.readouterr().out
    assert not run_line("\\q", requests.append)
    with pytest.raises(BadRequest, match="No closing quotation"):
        run_line("top-kernels --job 'a", requests.append)


def test_errors_and_ctrl_c_stay_in_the_loop(capsys):
    events = iter([BadRequest, KeyboardInterrupt, "top-kernel", "SELECT 1;", EOFError])
    requests = []

    def read():
        event = next(events)
        if isinstance(event, str):
            return event
        raise event("no such thing")

    loop(read, requests.append, (BadRequest,))
    assert [request.query.sql for request in requests] == ["SELECT 1"]
    first, second = capsys.readouterr().err.splitlines()
    assert first == "no such thing"
    assert "did you mean top-kernels" in second


def test_the_editor_takes_lines_until_a_semicolon_and_keeps_a_private_history(tmp_path):
    history = tmp_path / "state" / "sql_history"
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        session = prompt_session(history, CATALOGUE)
        keys.send_text("SELECT 1,\r2;\r")
        assert session.prompt("sql> ") == "SELECT 1,\n2;"
        keys.send_text("x\x03")
        with pytest.raises(KeyboardInterrupt):
            session.prompt("sql> ")
        keys.send_text("\x04")
        with pytest.raises(EOFError):
            session.prompt("sql> ")
    assert history.stat().st_mode & 0o777 == 0o600
    assert "+2;" in history.read_text()
