"""Values of the charts for the page's script: what is below the pointer, and which address a mark leads to.

Without the script the pictures are the same. Texts are JSON for an attribute, of numbers for the most part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from drumline.views.report.answer_chart import AnswerChart
from drumline.views.report.charts import Spec, steps_axis
from drumline.views.report.data import ReportData, Row
from drumline.views.report.heat_map import band_ranks, least_gap
from drumline.views.report.page import DEVICES, device_charts
from drumline.views.serve.addresses import job_url


def chart_values(data: ReportData) -> dict[str, str]:
    """Return the values of a job's charts by the chart's name; those without data have none."""
    values: dict[str, str] = {}
    if data.step_times:
        values["steps"] = _text(step_times(data))
    if data.lateness:
        values["lateness"] = _text(cells(data, data.lateness))
    if data.bands:
        values["bands"] = _text(cells(data, data.bands))
    for name, spec in device_charts(data).items():
        values[name] = over_time(spec, data.since, DEVICES[name][0])
    return values


def step_times(data: ReportData) -> dict[str, Any]:
    """Return the step times; `times`: from and to of each bin, ms since the epoch, for the address of a part."""
    rows = data.step_times
    columns = {"median": "median_ms", "shortest": "shortest_ms", "longest": "longest_ms"}
    return {
        "kind": "lines", "axis": "step", "unit": "ms", "domain": steps_axis(data)["scale"]["domain"],
        "width": least_gap(row["bin"] for row in rows), "names": [*columns],
        "rows": [[int(row["bin"]), *(_short(row[column]) for column in columns.values())] for row in rows],
        "times": [[int(row["begin_ms"]), int(row["end_ms"])] for row in rows],
    }  # fmt: skip


def cells(data: ReportData, rows: list[Row]) -> dict[str, Any]:
    """Return a heat map: `rows` of values by bin of steps (`bins`), null where nothing is known; ms late a step.

    A cell leads to the step in which the ranks of its row, `ranks`: first and last, came latest: `path`, the cell's
    first step, and `query` with the cell's last step and ranks.
    """
    band = band_ranks(rows) if "ranks" in rows[0] else 0
    known = sorted({int(row["rank"]) for row in rows})
    # Bands are drawn from rank 0 on without a gap, single ranks one below the other.
    firsts = list(range(0, known[-1] + 1, band)) if band else known
    bins = sorted({int(row["bin"]) for row in rows})
    places = {(int(row["rank"]), int(row["bin"])): _short(row["late_ms"]) for row in rows}
    path, _, query = job_url(data.job, data.run["run"], step=0).partition("?")
    return {
        "kind": "cells", "axis": "step", "unit": "ms late a step", "domain": steps_axis(data)["scale"]["domain"],
        "width": least_gap(bins), "bins": bins, "ranks": [[first, first + max(band - 1, 0)] for first in firsts],
        "rows": [[places.get((first, step)) for step in bins] for first in firsts],
        "path": path.removesuffix("0"), "query": query,
    }  # fmt: skip


def over_time(spec: Spec, since: str, unit: str) -> str:
    """Return the values of lines over time as drawn by charts.over_time. `since`: the time of its begin, UTC."""
    begin_ms = datetime.fromisoformat(since[:26]).replace(tzinfo=UTC).timestamp() * 1000
    encoding = spec["encoding"]
    names = encoding["color"]["scale"]["domain"]
    by_time: dict[float, dict[str, float]] = {}
    at: dict[float, float] = {}
    for row in spec["data"]["values"]:
        by_time.setdefault(row["second"], {})[row["series"]] = row["value"]
        at[row["second"]] = row["at"]
    seconds = sorted(by_time)
    gap = least_gap(seconds)
    return _text({
        "kind": "lines", "axis": encoding["x"]["title"], "unit": unit, "domain": encoding["x"]["scale"]["domain"],
        "width": 0, "names": names,
        "rows": [[_short(at[second]), *(_short(by_time[second].get(name)) for name in names)] for second in seconds],
        "times": [[int(begin_ms + 1e3 * second), int(begin_ms + 1e3 * (second + gap)) + 1] for second in seconds],
    })  # fmt: skip


def answer_values(chart: AnswerChart) -> str:
    """Return the values of lines of an answer as drawn by answer_chart; "" of bars, whose marks have their labels.

    Without times: a part of it is no other answer.
    """
    if not chart.over:
        return ""
    encoding = chart.spec["encoding"]
    names = encoding["color"]["scale"]["domain"]
    by_place: dict[float, dict[str, float]] = {}
    for point in chart.spec["data"]["values"]:
        by_place.setdefault(point["at"], {})[point["series"]] = point["value"]
    is_time = encoding["x"]["scale"]["type"] == "utc"
    title = f"{chart.over} {{}}".format
    return _text({
        "kind": "lines", "axis": chart.over, "unit": "", "domain": encoding["x"]["scale"]["domain"], "width": 0,
        "names": names,
        "rows": [[at, *(_short(values.get(name)) for name in names)] for at, values in by_place.items()],
        "titles": [title(f"{datetime.fromtimestamp(at / 1e3, UTC):%F %T}" if is_time else f"{at:g}")
                   for at in by_place],
    })  # fmt: skip


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"))
