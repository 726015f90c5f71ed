"""The heat maps of the report: what a cell, a row and a shade stand for."""

import re
from dataclasses import replace

import pytest
from support.report_data import report_data

from drumline.views.report import charts, heat_map
from drumline.views.report.page import page

STEPS = {"first": 0, "last": 199, "median_ms": 100.0}


def data(lateness=(), bands=()):
    """Report of these cells; bands have 128 ranks."""
    matched = report_data(lateness=list(lateness), bands=[{"ranks": 128, **row} for row in bands])
    return replace(matched, steps=matched.steps | STEPS, windows=matched.windows | {"first": 0, "last": 199})


def cells_of(spec):
    """Shade in ms -> (left, top, right, height) of its rectangles; pixels."""
    shape = re.compile(r"M([\d.]+),(\d+)H([\d.]+)v(\d+)H[\d.]+Z")
    return {
        round(row["late_ms"], 3): [tuple(map(float, cell)) for cell in shape.findall(row["cells"])]
        for row in spec["layer"][0]["data"]["values"]
    }


def cell(rank, first, late_ms):
    return {"rank": rank, "bin": first, "late_ms": late_ms}


def test_a_cell_stands_at_its_rank_and_steps_and_is_as_dark_as_it_is_late():
    spec = heat_map.lateness(data([cell(3, 0, 0.0), cell(3, 100, 150.0), cell(9, 0, 75.0), cell(9, 100, 150.0)]))
    row = spec["height"] / 2
    assert cells_of(spec) == {
        0.0: [(0, 0, 360, row)],
        80.0: [(0, row, 360, row)],
        150.0: [(360, 0, 720, row), (360, row, 720, row)],
    }


def test_neighbours_of_one_shade_are_one_rectangle_and_a_gap_stays_blank():
    known = [cell(0, first, 50.0) for first in (0, 10, 20, 50)] + [cell(1, first, 0.0) for first in (0, 190)]
    cells = cells_of(heat_map.lateness(data(known)))
    [dark] = [matched for late_ms, matched in cells.items() if late_ms]
    assert [(left, right) for left, _, right, _ in dark] == [(0, 108), (180, 216)]
    assert [(left, right) for left, _, right, _ in cells[0.0]] == [(0, 36), (684, 720)]


def test_bands_name_their_ranks_and_leave_room_for_those_without_data():
    bands = [cell(first, step, 40.0 if first == 256 else 1.0) for first in (0, 128, 256, 512) for step in (0, 100)]
    spec = heat_map.bands(data([cell(300, 0, 40.0)], bands))
    rows = spec["layer"][1]["data"]["values"]
    assert [(row["rank"], row["end"]) for row in rows] == [(0, 128), (128, 256), (256, 384), (512, 640)]
    assert rows[2]["text"] == "ranks 256 to 383: at most 40.0 ms late a step"
    tops = sorted({top for matched in cells_of(spec).values() for _, top, _, _ in matched})
    assert [top / spec["height"] for top in tops] == pytest.approx([0, 0.2, 0.4, 0.8])
    assert spec["layer"][1]["encoding"]["y"]["scale"]["domain"] == [0, 640]


def test_few_ranks_of_high_numbers_are_few_bands():
    recorded = [*range(40, 48), *range(9_000, 9_056), 16_383]
    latest = [cell(rank, step, float(rank + step)) for rank in recorded for step in (0, 100)]
    bands = heat_map.joined_bands(latest, 1, 128)
    assert [(row["rank"], row["ranks"], row["bin"], row["late_ms"]) for row in bands] == [
        (0, 128, 0, 47), (0, 128, 100, 147), (8_960, 128, 0, 9_055), (8_960, 128, 100, 9_155),
        (16_256, 128, 0, 16_383), (16_256, 128, 100, 16_483)
    ]  # fmt: skip
    spec = heat_map.bands(data(latest, bands))
    assert spec["height"] <= heat_map.HIGHEST
    assert [row["end"] for row in spec["layer"][1]["data"]["values"]] == [128, 9_088, 16_384]
    assert heat_map.joined_bands([], 1, 128) == []


def test_both_maps_have_the_same_shades():
    matched = data([cell(7, 0, 300.0)], [cell(0, 0, 30.0), cell(128, 0, 450.0)])
    domains = [
        of(matched)["layer"][0]["encoding"]["opacity"]["scale"]["domain"] for of in (heat_map.lateness, heat_map.bands)
    ]
    assert domains == [[0, 450.0], [0, 450.0]]


def test_a_map_of_a_large_job_is_drawn_small():
    bands = [cell(128 * n, 2 * step, (n * 7 + step * 3) % 90) for n in range(128) for step in range(100)]
    latest = [cell(700 * n, 2 * step, (n + step) % 90) for n in range(24) for step in range(100)]
    svg = charts.svg(heat_map.bands(data(latest, bands)))
    assert len(svg) < 400_000, "15,000 rectangles are 2 MB"
    assert svg.count("ms late a step") == 128, "a screen reader reads a row at a time"


def test_a_large_job_has_its_latest_ranks_and_all_bands_on_the_page():
    bands = [cell(128 * n, step, 1.0) for n in range(128) for step in (0, 100)]
    latest = [cell(700 * n, step, 2.0) for n in range(24) for step in (0, 100)]
    shown = page(replace(data(latest, bands), run=report_data().run | {"ranks": 16_384}))
    assert "The 24 latest ranks of 16384 are shown." in shown
    assert "All ranks, in bands of up to 128" in shown
    assert "in bands of" not in page(data(latest))
