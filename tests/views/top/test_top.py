"""`drumline top`: what it shows on wide and narrow terminals, and how it ends."""

import dataclasses
import io
import os
import pty
import re
import subprocess
import sys
from threading import Event

import pytest
import typer
from rich.console import Console
from support.wait_limit import WAIT_S

from drumline.cli.query import top as command_top
from drumline.infra.clickhouse.client import TransientError
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings
from drumline.views.report import queries as report_queries
from drumline.views.top import data as top_data
from drumline.views.top.data import Detail, TopSnapshot
from drumline.views.top.keys import ViewState, key_reader, press
from drumline.views.top.view import MOST_PIPED, PIPE, view

JOB = {"job": "[red]job[/red]", "run": "r1", "ranks": 4, "hosts": 2, "kernels": 1_234, "dropped_rows": 7,
       "ended": "2026-01-02 00:00:00", "age_s": 3.0}  # fmt: skip


def window(rank, state="ok", late_ms=0.5):
    return {"rank": rank, "host": "node-a", "first_step": 20, "last_step": 39, "severity": "critical", "state": state,
            "cause": "slow_copy", "detail": "pageable", "lost_share": 0.26, "step_ms": 100.0,
            "late_ms": late_ms}  # fmt: skip


def snapshot(ranks=4):
    late = {3: ("critical", 60.0), -1: ("ok", 0.0)}
    rows = [window(rank, *late.get(rank, ("ok", 0.5))) for rank in range(-1, ranks)]
    verdict = {**window(3, "critical"), "gpu_seconds": 12.34, "started": "2026-01-02 03:04:05.000000000"}
    steps = [{"rank": rank, "host": "node-a", "step": 39, "step_ms": 101.5} for rank in range(ranks)]
    return TopSnapshot(
        [dict(JOB)],
        Detail(
            "[red]job[/red]",
            "r1",
            steps,
            rows,
            [verdict],
            dropped_rows=7,
            late_rows=2,
            labels={"team": "vision", "model": "GPT"},
        ),
    )


def text(seen, width=120, height=40, error="", web_page=""):
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    console.print(view(seen, width, height, "drumline top", error, ViewState(web_page=web_page)))
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("windows", "evaluated", "reason", "expected"),
    [
        (10, 8, "few_steps_recorded", "drumline cannot judge this job in 2 of 10 windows of steps: most steps of a"),
        (10, 0, "no_collectives", "drumline cannot judge this job: its ranks met in no collective of NCCL."),
        (0, 0, "no_steps", "drumline cannot judge this job: no steps of it are known"),
        (10, 9, "few_steps_recorded", ""),
        (9, 0, "few_steps_recorded", ""),
        (0, 0, "", ""),
    ],
)
def test_a_job_that_cannot_be_evaluated_is_stated(windows, evaluated, reason, expected):
    seen = snapshot()
    counts = {"windows": windows, "evaluated": evaluated, "reason": reason}
    shown = text(dataclasses.replace(seen, detail=dataclasses.replace(seen.detail, coverage=[counts])), width=400)
    assert ("cannot judge" in shown) == bool(expected)
    assert expected in shown


def test_ranks_that_never_reported_are_named():
    seen = snapshot()
    assert "never reported" not in text(seen, width=400)
    lacking = dataclasses.replace(seen.detail, world=6, unreported=[4, 5], unreported_ranks=2)
    assert "2 ranks, 4 to 5 of 6 have never reported" in text(dataclasses.replace(seen, detail=lacking), width=400)


def test_ranks_verdicts_losses_and_freshness_are_shown():
    shown = text(snapshot())
    assert "[red]job[/red]" in shown  # as it is called, not as markup
    assert "[red]job[/red] (team vision): steps" in shown
    assert "what to do about rank 3: " in shown
    assert "3 s ago" in shown
    assert "steps 20 to 39, the last that could be evaluated" in shown
    line = next(line for line in shown.splitlines() if "60.0" in line)
    assert line.split()[:5] == ["3", "node-a", "39", "101.5", "60.0"]
    assert "critical 26% lost: slow copy pageable" in line
    assert "12.3" in shown
    assert "7 dropped, 2 late, 0 unreadable" in shown


@pytest.mark.parametrize(("state", "seconds", "expected"), [("standing", 30, "30 s"), ("hung", 3_600, "60 min")])
def test_a_job_that_stands_still_has_a_line_with_its_reason(state, seconds, expected):
    seen = snapshot()
    row = {"state": state, "reason": "not_called", "seconds": seconds, "note": "Rank 1 has not called AllReduce 41.",
           "awaited": [1]}  # fmt: skip
    seen.detail.hang.append(row)
    assert f"{state} for {expected}: Rank 1 has not called AllReduce 41." in text(seen)
    shown = text(seen, web_page="http://web")
    assert "called AllReduce 41. More: http://web/cause/hung#not_called" in shown
    assert "has not called" not in text(snapshot())


def test_the_alarm_is_shown_not_what_one_window_was_on_its_own():
    seen = snapshot()
    [verdict] = [row for row in seen.detail.window if row["rank"] == 3]
    for state, expected in (
        ("suspect", "suspect 26% lost: slow copy pageable"), ("insufficient_data", "insufficient data"),
    ):  # fmt: skip
        verdict["state"] = state
        line = next(line for line in text(seen).splitlines() if "60.0" in line)
        assert line.endswith(expected)
    verdict |= {"state": "warning", "cause": "ok", "lost_share": 0.0}
    assert "warning; this window is ok" in text(seen)


def test_a_rank_without_a_step_in_the_window_has_no_step_time():
    seen = snapshot()
    seen.detail.steps[2]["step_ms"] = None
    line = next(line for line in text(seen).splitlines() if line.startswith("   2"))
    assert line.split()[:4] == ["2", "node-a", "39", "-"]


def test_gauges_are_parts_of_the_step():
    gauges = {line.split()[0]: line.count("━") for line in text(snapshot()).splitlines() if "node-a" in line}
    assert gauges["3"] in (14, 15)  # 60 of 100 ms, of 24 characters
    assert gauges["0"] <= 1


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_nothing_is_wider_than_the_terminal_and_what_counts_is_there(width):
    shown = text(snapshot(), width)
    assert max(map(len, shown.splitlines())) <= width
    line = next(line for line in shown.splitlines() if "60.0" in line)
    assert "critical" in line or width < 60


def test_many_ranks_are_cut_to_the_latest_that_fit():
    shown = text(snapshot(ranks=500), height=30)
    assert len(shown.splitlines()) <= 30
    assert any("60.0" in line for line in shown.splitlines())
    assert "less late: 4" in shown  # hundreds of them


def test_four_ranks_and_three_jobs_fit_a_terminal_of_24_lines_outage_included():
    seen = snapshot()
    error = "ClickHouse does not answer at an address that is rather long; `drumline up` starts the local stack"
    shown = text(TopSnapshot([JOB] * 3, seen.detail), 80, 24, error).splitlines()
    assert len(shown) <= 24
    assert [line.split()[0] for line in shown if "101.5" in line] == ["3", "0", "1", "2"], "the latest first"


LONG = {
    "job": "llama-70b-pretraining-of-the-third-data-mix-with-a-longer-context",
    "run": "2026-01-02T03-04-05-restarted-after-a-node-was-lost",
    "host": "gpu-node-0123.rack-17.zone-b.a-cluster-with-a-long-name.example.net",
}


def long_names():
    seen = snapshot()
    for row in [*seen.jobs, *seen.detail.steps, *seen.detail.window, *seen.detail.verdicts]:
        row |= {name: LONG[name] for name in LONG if name in row}
    return TopSnapshot(seen.jobs, dataclasses.replace(seen.detail, job=LONG["job"], run=LONG["run"]))


def is_whole(name, shown):
    """Return whether the name is there, continued on lines below where it does not fit."""
    for piece in re.split(r"[\s,:]+", shown):
        name = name[len(piece) :] if name.startswith(piece) else name
    return not name


@pytest.mark.parametrize("width", [80, 90, 120, 160])
def test_long_names_are_continued_and_no_number_is_cut(width):
    shown = text(long_names(), width, height=80)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    for number in ("1,234", "3 s ago", "101.5", "60.0", "12.3", "20–39", "03:04:05", "39"):
        assert number in shown
    assert all(is_whole(name, shown) for name in LONG.values())


def test_a_terminal_is_filled_with_ranks_whose_rows_have_several_lines():
    seen = snapshot(ranks=500)
    for row in [*seen.detail.steps, *seen.detail.window]:
        row["host"] = LONG["host"] if row["rank"] % 2 else "node-a"
    shown = text(seen, 80, height=40)
    assert 38 <= len(shown.splitlines()) <= 40
    assert sum("101.5" in line for line in shown.splitlines()) + int(re.search(r"less late: (\d+)", shown)[1]) == 500


@pytest.mark.parametrize("size", [(80, 24), (200, 50)], ids=["80 columns", "200 columns"])
def test_a_pipe_gets_all_ranks_of_a_small_job_and_names_in_one_line_each(monkeypatch, tmp_path, capsys, size):
    monkeypatch.setenv("COLUMNS", str(size[0]))
    monkeypatch.setenv("LINES", str(size[1]))
    seen = long_names()
    ranks = snapshot(ranks=100).detail
    seen = TopSnapshot(seen.jobs, dataclasses.replace(seen.detail, steps=ranks.steps, window=ranks.window))
    monkeypatch.setattr(command_top, "_query", lambda *_: seen)
    monkeypatch.setattr(command_top, "settings", lambda: ephemeral_settings(tmp_path))
    command_top.top(job="", interval=1.0, once=True, as_json=False)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert [line for line in shown.splitlines() if LONG["job"] in line and LONG["run"] in line and "1,234" in line]
    assert [line for line in shown.splitlines() if LONG["host"] in line and line.endswith("12.3")]
    assert sum("101.5" in line for line in shown.splitlines()) == 100
    assert "more rank" not in shown


def test_a_pipe_gets_the_latest_ranks_of_a_large_job_and_how_to_get_all():
    shown = text(snapshot(ranks=MOST_PIPED + 5_000), *PIPE)
    assert sum("101.5" in line for line in shown.splitlines()) == MOST_PIPED
    assert any("60.0" in line for line in shown.splitlines())
    assert "less late: 5,000 more ranks; --json has more" in shown


def test_run_and_hosts_are_in_the_title_of_a_narrow_terminal_and_each_rank_has_its_host():
    shown = text(snapshot(), 80).splitlines()
    assert any("run r1, 2 hosts: steps 20 to 39" in line for line in shown)
    assert all("node-a" in line for line in shown if "101.5" in line)


def test_names_with_control_characters_are_shown_escaped_in_a_table_that_fits():
    seen, steering = snapshot(), "a\x1b]0;x\x07\x9b31m\u202e\rb"
    for row in [*seen.jobs, *seen.detail.steps, *seen.detail.window, *seen.detail.verdicts]:
        row |= {name: steering for name in ("job", "run", "host", "cause", "detail") if name in row}
    shown = text(seen, width=200)
    assert shown.count(r"a\x1b]0;x\x07\x9b31m\u202e\rb") >= 5, "job, run, hosts, verdicts"
    assert all(char.isprintable() for char in shown.replace("\n", ""))


def test_no_data_and_no_evaluated_window_are_reported():
    assert "no data yet" in text(TopSnapshot([], None))
    shown = text(TopSnapshot([JOB], Detail("job", "r1")))
    assert "insufficient data" in shown
    assert "no verdict so far" in shown


def test_what_is_shown_while_clickhouse_is_away_has_the_error():
    assert "does not answer" in text(snapshot(), error="ClickHouse does not answer")


def test_a_stack_that_is_away_ends_it_with_what_to_do(tmp_path):
    settings = ephemeral_settings(tmp_path)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "analyst.password").write_text("x")
    done = subprocess.run([sys.executable, "-m", "drumline.cli.app", "top"], env=environment(settings),
                          capture_output=True, text=True, timeout=WAIT_S, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert "does not answer" in done.stderr
    assert "`drumline up` starts the local one, DRUMLINE_CLICKHOUSE__URL names another" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_outage_while_it_runs_is_shown_and_asked_again_until_ctrl_c(monkeypatch, tmp_path):
    answers = [snapshot(), TransientError("ClickHouse does not answer"), snapshot(), KeyboardInterrupt()]
    shown = []

    def fake_query(*_):
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    monkeypatch.setattr(command_top, "terminal_console", lambda: terminal)
    monkeypatch.setattr(command_top, "_query", fake_query)
    monkeypatch.setattr(command_top, "settings", lambda: ephemeral_settings(tmp_path))
    monkeypatch.setattr(command_top.time, "sleep", lambda _: None)
    monkeypatch.setattr(command_top, "_shown", lambda *a: shown.append(a[4:]) or "")
    with pytest.raises(typer.Exit) as end:
        command_top.top(job="", interval=0.01, once=False, as_json=False)
    assert end.value.exit_code == 130
    assert [bool(error and error[0]) for error in shown] == [False, True, False]


def test_two_of_its_queries_run_at_a_time_and_an_error_of_either_ends_it():
    begun = {top_data.WINDOW: Event(), top_data.VERDICTS: Event()}
    other = {top_data.WINDOW: top_data.VERDICTS, top_data.VERDICTS: top_data.WINDOW}
    failing = ""

    def query(sql, parameters):
        if sql in begun:
            begun[sql].set()
            assert begun[other[sql]].wait(WAIT_S), "its queries wait for each other"
        if sql == failing:
            raise TransientError("gone")
        rows = {top_data.JOBS: [dict(JOB)], report_queries.LABELS: [{"labels": {"team": "vision"}}],
                top_data.QUALITY: [{"dead": 1, "duplicates": 2, "dropped_rows": 3}],
                top_data.LATE: [{"late_rows": 4}]}  # fmt: skip
        window = {"since": "2026-01-02", "attempt": "2026-01-01", "first_step": 20, "last_step": 39}
        return rows.get(sql, [{**window, "of": sql}])

    detail = top_data.snapshot(query, "").detail
    assert [rows[0]["of"] for rows in (detail.window, detail.steps, detail.verdicts, detail.hang)] == [
        top_data.WINDOW, top_data.STEPS, top_data.VERDICTS, top_data.HANG,
    ]  # fmt: skip
    assert (detail.dead, detail.duplicates, detail.dropped_rows, detail.late_rows) == (1, 2, 3, 4)
    assert detail.labels == {"team": "vision"}
    for failing in (top_data.STEPS, top_data.LATE):  # noqa: B007
        with pytest.raises(TransientError, match="gone"):
            top_data.snapshot(query, "")


def test_a_name_that_is_no_jobs_ends_it_with_those_that_there_are(monkeypatch, tmp_path, capsys):
    def query(sql, parameters):
        return [{"job": "demo"}] if sql == report_queries.JOBS else []

    seen = top_data.snapshot(query, "other")
    assert "no job 'other' is stored; there are: 'demo'" in text(seen)
    monkeypatch.setattr(command_top, "_query", lambda *_: seen)
    monkeypatch.setattr(command_top, "settings", lambda: ephemeral_settings(tmp_path))
    with pytest.raises(typer.Exit) as end:
        command_top.top(job="other", interval=1.0, once=True, as_json=True)
    assert end.value.exit_code == 2
    assert "there are: 'demo'" in capsys.readouterr().err


def test_a_verdict_has_its_host_and_time_of_day_also_in_80_columns():
    for width in (80, 120):
        line = next(line for line in text(snapshot(), width).splitlines() if "03:04:05" in line)
        assert "rank 3" in line
        assert "node-a" in line
        assert "slow copy pageable" in line
        assert line.endswith("12.3")


def test_a_rank_that_waits_for_a_late_one_is_no_healthy_green():
    seen = snapshot()
    [victim] = [row for row in seen.detail.window if row["rank"] == 1]
    victim["late_ms"] = 45.0
    line = next(line for line in text(seen).splitlines() if "45.0" in line)
    assert line.rstrip().endswith("ok; held up by others")
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system="256")
    console.print(view(seen, 120, 40, ""))
    line = next(line for line in console.file.getvalue().splitlines() if "45.0" in line)
    gauge = line[: line.index("━")].rpartition("\x1b[")[2]
    assert gauge == "38;5;244m", "grey"


@pytest.mark.parametrize(
    ("pressed", "state"),
    [
        (["j"], {"selected": "b"}),
        (["down", "down", "down"], {"selected": "c"}),
        (["down", "k", "up"], {"selected": "a"}),
        (["enter"], {"selected": "a", "is_focused": True}),
        (["down", "enter", "down"], {"selected": "b", "is_focused": True}),
        (["enter", "escape"], {"selected": "a"}),
        (["s"], {"order": "rank"}),
        (["s"] * 4, {}),
        (["?"], {"has_help": True}),
        (["x", "?", "?"], {}),
    ],
)
def test_a_key_changes_the_view(pressed, state):
    now = ViewState()
    for key in pressed:
        now = press(now, {"j": "down", "k": "up"}.get(key, key), ["a", "b", "c"])
    assert now == ViewState(**state)


def test_q_ends_it_and_no_key_needs_a_job():
    assert press(ViewState(), "q", []) is None
    assert all(press(ViewState(), key, []) == ViewState() for key in ("up", "down", "enter"))


def test_the_view_follows_order_selection_focus_and_help():
    def ranks(**state):
        console = Console(file=io.StringIO(), width=80, color_system=None)
        console.print(view(snapshot(), 80, 24, "", "", ViewState(**state)))
        shown = console.file.getvalue()
        return [line.split()[0] for line in shown.splitlines() if "101.5" in line], shown

    assert ranks()[0] == ["3", "0", "1", "2"]
    assert ranks(order="rank")[0] == ["0", "1", "2", "3"]
    assert "GPU-s" in ranks()[1]
    assert "GPU-s" not in ranks(is_focused=True)[1]
    assert "q  end" in ranks(has_help=True)[1]
    assert len(ranks(has_help=True)[1].splitlines()) <= 24


def test_keys_and_a_new_size_of_a_real_terminal(monkeypatch):
    parent, child = pty.openpty()
    with open(child, "rb", buffering=0, closefd=True) as terminal:
        monkeypatch.setattr("sys.stdin", terminal)
        with key_reader() as read:
            for sent, key in ((b"\x1b[A", "up"), (b"j", "down"), (b"\r", "enter"), (b"?", "?"), (b"\x1b", "escape")):
                os.write(parent, sent)
                assert read(5.0) == key
            assert read(0.0) == ""
    os.close(parent)
