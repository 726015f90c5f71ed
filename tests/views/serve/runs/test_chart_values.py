"""Values of the charts for the page's script: those that are drawn, and the step that a cell of lateness leads to."""

import json
from urllib.parse import parse_qs

import pytest
from support.report_data import HOSTILE, report_data

from drumline.infra.clickhouse.queries import Chart
from drumline.views.report import charts
from drumline.views.report.answer_chart import answer_chart
from drumline.views.report.page import page
from drumline.views.serve.runs.chart_values import answer_values, cells, chart_values, over_time, step_times


def test_step_times_have_the_time_that_shows_only_that_part():
    values = step_times(report_data())
    assert values["rows"][40] == [40, 540.0, 530.0, 550.0]
    assert values["times"][40] == [1767312020000, 1767312020501]
    assert (values["domain"], values["width"]) == ([0, 200], 1)
    assert values["names"] == ["median", "shortest", "longest"]


def test_a_cell_leads_to_the_steps_of_its_window_and_its_rank():
    values = cells(data := report_data(), data.lateness)
    assert values["rows"][3][7] == pytest.approx(140 * 3 / 100)
    assert (values["bins"][7], values["width"], values["ranks"][3]) == (140, 20, [3, 3])
    assert (values["path"], values["query"]) == ("/job/job/step/", "run=r1")


def test_a_cell_without_a_value_is_not_known():
    rows = [{"bin": 0, "rank": 0, "late_ms": 1.0}, {"bin": 20, "rank": 2, "late_ms": 2.0}]
    assert cells(report_data(), rows)["rows"] == [[1.0, None], [None, 2.0]]


def test_rows_of_bands_are_drawn_from_rank_0_on_without_a_gap():
    rows = [{"bin": 0, "rank": 16, "ranks": 8, "late_ms": 1.0}]
    values = cells(report_data(bands=rows), rows)
    assert values["ranks"] == [[0, 7], [8, 15], [16, 23]]
    assert values["rows"] == [[None], [None], [1.0]]


@pytest.mark.parametrize("name", ["a/b", "step/0", "00", HOSTILE])
def test_the_address_of_a_cell_has_any_name(name):
    values = cells(data := report_data(job=name, run=report_data().run | {"run": name}), data.lateness)
    assert values["path"].endswith("/step/")
    assert values["path"].count("/") == 4
    assert parse_qs(values["query"]) == {"run": [name]}


def test_lines_over_time_have_the_time_of_each_value():
    rows = [{"second": second, "value": 90.0 + second, "series": "rank 0", "rank": 0} for second in (0.0, 600.0)]
    rows.append({"second": 600.0, "value": 5.0, "series": "rank 1", "rank": 1})
    values = json.loads(over_time(charts.over_time(rows, 1200.0, "%"), "2026-01-02 00:00:00.000000000", "%"))
    assert values["axis"] == "min from the start"
    assert values["rows"] == [[0.0, 90.0, None], [10.0, 690.0, 5.0]]
    assert values["times"] == [[1767312000000, 1767312600001], [1767312600000, 1767313200001]]


def test_each_chart_over_steps_or_time_has_values_and_the_mailed_report_has_none():
    data = report_data()
    assert chart_values(data).keys() == {"steps", "lateness", "util", "power_w", "clock_mhz", "celsius"}
    assert chart_values(report_data(step_times=[], lateness=[], device_times=[])) == {}
    assert "data-chart" not in page(data)


def test_lines_of_an_answer_have_titles_and_no_time_that_a_drag_could_choose():
    rows = [["2026-01-02 00:00:10.000000000", "HtoD", "2"], ["2026-01-02 00:00:00.000000000", "DtoH", "1"]]
    chart = Chart(("gb",), "start", ("direction",), is_stacked=False)
    values = json.loads(answer_values(answer_chart(chart, ["start", "direction", "gb"], rows)))
    assert values["titles"] == ["start 2026-01-02 00:00:00", "start 2026-01-02 00:00:10"]
    assert values["rows"] == [[1767312000000, 1.0, None], [1767312010000, None, 2.0]]
    assert values["names"] == ["DtoH", "HtoD"]
    assert "times" not in values


def test_marks_of_an_answer_have_their_labels_alone():
    shares = answer_chart(Chart(("s",), "", ("kernel",), is_stacked=False), ["kernel", "s"], [["k", "1"]])
    assert answer_values(shares) == ""
