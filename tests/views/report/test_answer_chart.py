"""Charts of questions' answers: which cells are drawn, as bars or lines, and what is left out."""

import pytest

from drumline.infra.clickhouse.queries import Chart
from drumline.views.report import charts
from drumline.views.report.answer_chart import MOST_ROWS, SERIES, answer_chart

SHARES = Chart(("gpu_s",), "", ("kernel",), is_stacked=False)
TIMES = Chart(("gb_per_s",), "window_start", ("direction",), is_stacked=False)


def values(chart):
    return chart.spec["data"]["values"]


def test_each_row_is_drawn_in_the_answers_order():
    chart = answer_chart(SHARES, ["kernel", "gpu_s"], [["gemm", "1.5"], ["copy", "9"]])
    assert [(mark["row"], mark["value"]) for mark in values(chart)] == [("gemm", 1.5), ("copy", 9.0)]
    assert (chart.rows, chart.over) == (2, "")


def test_rows_of_one_name_are_drawn_apart():
    chart = answer_chart(SHARES, ["kernel", "gpu_s"], [["k", "1"], ["k", "2"], ["", "3"]])
    assert [mark["row"] for mark in values(chart)] == ["k", "2. k", "–"]


@pytest.mark.parametrize("cell", ["NULL", "", "nan", "inf", "[1,2]"])
def test_what_is_no_number_is_not_drawn_as_one(cell):
    names = ["kernel", "gpu_s"]
    assert [mark["row"] for mark in values(answer_chart(SHARES, names, [["a", cell], ["b", "1"]]))] == ["b"]
    assert answer_chart(SHARES, names, [["a", cell]]) is None


def test_many_rows_are_lines_over_their_number():
    ranks = Chart(("late_ms",), "", ("rank",), is_stacked=False)
    many = [[str(rank), "2.0"] for rank in range(MOST_ROWS + 1)]
    chart = answer_chart(ranks, ["rank", "late_ms"], many)
    assert (chart.over, chart.rows, len(values(chart))) == ("rank", MOST_ROWS + 1, MOST_ROWS + 1)


def test_of_many_names_the_first_rows_are_drawn():
    chart = answer_chart(SHARES, ["kernel", "gpu_s"], [[f"k{n}", "2.0"] for n in range(MOST_ROWS + 1)])
    assert (chart.over, chart.rows, len(values(chart))) == ("", MOST_ROWS, MOST_ROWS)


def test_lines_are_in_order_of_time_and_one_for_each_name():
    rows = [["2026-01-02 00:00:10.000000000", "DtoH", "2"], ["2026-01-02 00:00:00.000000000", "HtoD", "1"]]
    chart = answer_chart(TIMES, ["window_start", "direction", "gb_per_s"], rows)
    assert [(p["at"], p["series"], p["value"]) for p in values(chart)] == [
        (1767312000000.0, "HtoD", 1.0), (1767312010000.0, "DtoH", 2.0),
    ]  # fmt: skip
    assert chart.spec["encoding"]["x"]["type"] == "temporal"


def test_more_lines_than_colours_are_left_out():
    rows = [[str(step), f"r{rank}", "1"] for step in range(2) for rank in range(SERIES + 3)]
    chart = answer_chart(Chart(("ms",), "step", ("rank",), is_stacked=False), ["step", "rank", "ms"], rows)
    assert len({point["series"] for point in values(chart)}) == SERIES


@pytest.mark.parametrize("rows", [[["5", "1"]], [["5", "1"], ["5", "2"]], [["x", "1"], ["y", "2"]]])
def test_one_place_or_none_makes_no_line(rows):
    assert answer_chart(Chart(("ms",), "step", (), is_stacked=False), ["step", "ms"], rows) is None


@pytest.mark.parametrize("stacked", [False, True])
def test_measures_of_a_row_are_beside_each_other_or_parts_of_one_mark(stacked):
    chart = answer_chart(Chart(("a", "b"), "", ("rank",), stacked), ["rank", "a", "b"], [["0", "1", "2"]])
    assert ("yOffset" in chart.spec["encoding"]) is not stacked
    svg = charts.svg(chart.spec)
    assert svg.count('aria-roledescription="bar"') == 2
    assert "measure: b" in svg
