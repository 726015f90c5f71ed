"""Charts for phones: the same data on a plot that fits, beside the wide ones on the web page only."""

import pytest
from support.report_data import report_data

from drumline.views.report import charts
from drumline.views.report.page import CHARTS, draw_ahead, page, sections

BANDS = [{"rank": rank, "ranks": 8, "bin": first, "late_ms": 9.0} for rank in (0, 8) for first in (0, 100)]
#: Pixels beside a phone's plot: the axis, or the names of a row.
BESIDE = 80


@pytest.mark.parametrize("name", CHARTS)
def test_a_slim_chart_fits_a_phone_and_has_the_same_values(name):
    data = report_data(bands=BANDS)
    wide, slim = (CHARTS[name][1](data, width) for width in (charts.WIDTH, charts.SLIM))
    axis = {"kernels": 175, "memcpys": 180}.get(name, BESIDE)
    assert slim["width"] + axis <= 390 < wide["width"] + axis
    assert slim["height"] == wide["height"]
    assert len(str(slim["layer"][-1])) == pytest.approx(len(str(wide["layer"][-1])), rel=0.2)


def test_cells_of_a_slim_heat_map_end_with_its_plot():
    slim = CHARTS["lateness"][1](report_data(), charts.SLIM)
    paths = "".join(row["cells"] for row in slim["layer"][0]["data"]["values"])
    assert max(float(part.split("v")[0]) for part in paths.split("H")[1::2]) == charts.SLIM


def test_a_slim_heat_map_has_few_columns_each_as_dark_as_its_latest_cell():
    known = [{"rank": 0, "bin": first, "late_ms": 90.0 * (first == 3)} for first in range(200)]
    slim = CHARTS["lateness"][1](report_data(lateness=known), charts.SLIM)
    *_, darkest = slim["layer"][0]["data"]["values"]
    assert darkest["cells"] == "M0,0H7.2v60H0Z"


def test_names_of_kernels_are_shorter_on_a_slim_chart():
    data = report_data(kernels=[report_data().kernels[0] | {"short": "a" * 60 + "end"}])
    [row] = CHARTS["kernels"][1](data, charts.SLIM)["data"]["values"]
    assert len(row["kernel"]) == len("1. ") + 20
    assert row["kernel"].endswith("end")


def test_only_the_web_page_has_both():
    data = report_data()
    both = sections(data, with_slim=True)["charts"]
    assert {name: both[name].count("<svg") for name in ("steps", "lateness", "bands", "kernels", "util")} == {
        "steps": 2, "lateness": 2, "bands": 0, "kernels": 2, "util": 1,
    }  # fmt: skip
    assert page(data).count("<svg") == sum(bool(chart) for chart in both.values())


def test_charts_of_both_widths_that_were_drawn_ahead_are_not_drawn_again():
    data = report_data(job="drawn ahead", bands=BANDS)
    known = {field: getattr(data, field) for field in data.__dataclass_fields__}
    draw_ahead(known, tuple(known), with_slim=True)
    drawn = charts._drawn.cache_info().misses
    sections(data, with_slim=True)
    assert charts._drawn.cache_info().misses == drawn
