"""The deep window of a verdict: its steps, what differed in it, and the commands that show it."""

from support.report_data import report_data

from drumline.infra.clickhouse.queries import query as named_query
from drumline.views.report import deep_window, queries
from drumline.views.report.explanation import explain
from drumline.views.report.page import page

PLACE = {
    "job": "j",
    "run": "r",
    "rank": 3,
    "started": "2026-01-02 00:00:10",
    "ended": "2026-01-02 00:00:14",
    "first_step": 100,
    "last_step": 139,
}
WINDOW = {"verdict_step": 100, "is_recorded": 1, "after_s": 7.2, "steps": 19, "first": 160, "last": 178}


def part(name, late, healthy, unit="ms/s", peers=1):
    return {"what": name, "of_rank": late, "of_peers": healthy, "unit": unit, "peers": peers}


PARTS = [part("SM clock", 1200.0, 1755.0, "MHz"), part("idle", 10.0, 300.4), part("gemm", 612.3, 401.0),
         part("HtoD, pageable", 90.0, 0.0), part("other", 2.0, 1.0)]  # fmt: skip


def answering(window=WINDOW, parts=PARTS, **more):
    question = named_query(deep_window.QUESTION).sql
    answers = {deep_window.WINDOW: [window], question: parts, **more}
    return lambda sql, values: answers.get(sql, [])


def test_the_largest_differences_and_the_clock_stand_beside_the_peers():
    result = deep_window.deep_window(answering(), PLACE)
    assert (result.verdict_step, result.first_step, result.last_step) == (100, 160, 178)
    assert result.text() == (
        "steps 160 to 178, 7 s after the verdict's: idle 10 ms of each second (healthy: 300); "
        "gemm 612 ms of each second (healthy: 401); HtoD, pageable 90 ms of each second (healthy: 0); "
        "SM clock 1,200 MHz (healthy: 1,755)"
    )


def test_a_rank_may_be_recorded_without_peers_and_between_steps():
    no_peers = [part("gemm", 612.3, 0.0, peers=0)]
    result = deep_window.deep_window(answering({**WINDOW, "steps": 0}, no_peers), PLACE)
    assert result.text() == "7 s after the verdict's: no peer recorded"


def test_without_kernels_behind_the_verdict_there_is_no_window():
    assert deep_window.deep_window(answering({**WINDOW, "is_recorded": 0}), PLACE) is None
    assert deep_window.deep_window(lambda sql, values: [], PLACE) is None


def test_explain_and_report_link_the_verdict_to_its_window():
    data = report_data()
    row = {**data.episodes[0], "state": "critical"}
    query = answering(**{queries.RUNS: [data.run], queries.LABELS: [{"labels": {}}], queries.WINDOWS: [data.windows],
                         queries.EPISODES: [row]})  # fmt: skip
    [text] = explain(query, "my job", "", None, most=1).texts
    assert [line for line in text.lines() if line.startswith("  deep      steps 160 to 178, ")]
    assert text.commands[1:] == [
        "drumline sql verdict-window --job 'my job' --run r1 --rank 3 --first-step 100",
        "drumline timeline --job 'my job' --run r1 --steps 160-169",
    ]
    html = page(report_data(episodes=[{**row, "deep": deep_window.deep_window(query, PLACE)}]))
    assert "Deep window: steps 160 to 178, 7 s after" in html
    assert "--steps 160-169" in html
    assert "Deep window" not in page(data)
