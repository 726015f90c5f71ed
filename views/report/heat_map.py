"""The report's heat maps: how late each rank was, or each band of ranks, in each window of steps.

Cells of one shade are one path: a picture of 128 bands and 120 windows has a few paths, not 15,000 rectangles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from math import ceil

from drumline.views.report.charts import NUMBERS, WIDTH, Spec, field, steps_axis
from drumline.views.report.data import ReportData, Row

#: Shades from on time to latest; the opacity of the first and the last. On time is tinted too: blank means not known.
SHADES, OPACITY = 16, (0.06, 1.0)
#: Most columns of a slim map, or its drawing would cost as much as that of the wide one.
SLIM_COLUMNS = 40
#: Bounds of a map's height, and the height of a rank at most; pixels.
LOWEST, HIGHEST, RANK_HEIGHT = 60, 360, 22


def lateness(data: ReportData, width: int = WIDTH) -> Spec:
    """Return a row for each of the latest ranks, and a cell for each window of steps; later is darker."""
    ranks = sorted({int(row["rank"]) for row in data.lateness})
    height = max(-(-LOWEST // len(ranks)), min(RANK_HEIGHT, HIGHEST // len(ranks)))
    tops = {rank: number * height for number, rank in enumerate(ranks)}
    y = {"y": field("rank", "ordinal", "rank", sort=None, axis=NUMBERS, scale={"paddingInner": 0, "paddingOuter": 0})}
    rows = [{"rank": rank, "text": f"rank {rank}: {most}"} for rank, most in _most(data.lateness).items()]
    return _heat_map(data, data.lateness, tops, height, y, rows, width)


def bands(data: ReportData, width: int = WIDTH) -> Spec:
    """Return a row for each band of ranks, from 0 on; a cell shows the latest rank of its band in one window."""
    firsts, ranks = sorted({int(row["rank"]) for row in data.bands}), band_ranks(data.bands)
    number = firsts[-1] // ranks + 1
    height = max(1, HIGHEST // number)
    tops = {first: first // ranks * height for first in firsts}
    scale = {"domain": [0, number * ranks], "reverse": True, "nice": False}
    y = {"y": field("rank", "quantitative", "rank", scale=scale, axis={"format": "d", "grid": False, **NUMBERS}),
         "y2": {"field": "end"}}  # fmt: skip
    rows = [{"rank": first, "end": first + ranks, "text": f"ranks {first} to {first + ranks - 1}: {most}"}
            for first, most in _most(data.bands).items()]  # fmt: skip
    return _heat_map(data, data.bands, tops, height, y, rows, width) | {"height": number * height}


def joined_bands(cells: list[Row], ranks: int, most: int) -> list[Row]:
    """Return the cells of at most `most` bands from rank 0 on: a run may have recorded few ranks, of high numbers.

    `ranks`: of a band of `cells`; those that are returned have their own.
    """
    ranks *= -(-(max((int(row["rank"]) for row in cells), default=0) // ranks + 1) // most)
    latest: dict[tuple[int, int], float] = {}
    for row in cells:
        place = int(row["rank"]) // ranks * ranks, int(row["bin"])
        latest[place] = max(latest.get(place, 0.0), row["late_ms"])
    return [{"bin": step, "rank": rank, "ranks": ranks, "late_ms": late_ms}
            for (rank, step), late_ms in sorted(latest.items())]  # fmt: skip


def band_ranks(cells: list[Row]) -> int:
    """Return the ranks of a band."""
    return int(cells[0]["ranks"]) if cells else 1


def _most(cells: list[Row]) -> dict[int, str]:
    """Return what a screen reader reads of each row."""
    most: dict[int, float] = {}
    for row in cells:
        most[int(row["rank"])] = max(most.get(int(row["rank"]), 0.0), row["late_ms"])
    return {rank: f"at most {late_ms:.1f} ms late a step" for rank, late_ms in sorted(most.items())}


def darkest_ms(data: ReportData) -> float:
    """Return the lateness of the darkest cell: a quarter of a step at least, or a healthy job looks like a late one."""
    most = max(row["late_ms"] for row in [*data.lateness, *data.bands])
    return float(max(most, (data.steps.get("median_ms") or 0) / 4))


def _heat_map(
    data: ReportData,
    cells: list[Row],
    tops: Mapping[int, int],
    height: int,
    y: Spec,
    rows: list[Row],
    width: int,
) -> Spec:
    """Return the map of `cells`, whose `rank` begins at a pixel of `tops`. `rows`: what an invisible row stands for."""
    axis, darkest = steps_axis(data), darkest_ms(data)
    x = field("first", "quantitative", "step", **axis)
    begin, end = axis["scale"]["domain"]
    opacity = field(
        "late_ms", "quantitative", "late, ms a step", scale={"domain": [0, darkest], "range": OPACITY},
        legend={"tickCount": 4, "symbolStrokeWidth": 0},
    )  # fmt: skip
    shades = [{"late_ms": darkest * shade / (SHADES - 1), "cells": path}
              for shade, path in _paths(cells, tops, height, (begin, end, width), darkest)]  # fmt: skip
    return {
        "height": height * len(tops), "width": width,
        "layer": [
            {"data": {"values": shades},
             "mark": {"type": "point", "filled": True, "color": "var(--late)", "aria": False},
             "encoding": {"x": {"value": 0}, "y": {"value": 0}, "size": {"value": 4},  # pixels are those of the path
                          "shape": field("cells", "nominal", None, scale=None, legend=None), "opacity": opacity}},
            {"data": {"values": [{"first": begin, "last": end, **row} for row in rows]},
             "mark": {"type": "rect", "opacity": 0},
             "encoding": {"x": x, "x2": {"field": "last"}, **y, "description": {"field": "text"}}},
        ],
    }  # fmt: skip


def _paths(
    cells: list[Row], tops: Mapping[int, int], height: int, steps: tuple[int, int, int], darkest: float
) -> list[tuple[int, str]]:
    """Return (shade, SVG path in pixels) of the cells; neighbours of one shade in a row are one rectangle.

    `steps`: first, end, and the pixels between them.
    """
    begin, end, pixels = steps
    width = int(least_gap(int(row["bin"]) for row in cells))
    if pixels < WIDTH and (end - begin) > width * SLIM_COLUMNS:
        cells, width = _joined(cells, begin, width * ceil((end - begin) / width / SLIM_COLUMNS))

    def shade(row: Row) -> int:
        return round(min(1.0, row["late_ms"] / darkest) * (SHADES - 1)) if darkest else 0

    drawn: dict[int, list[str]] = {}
    for rank, row in groupby(sorted(cells, key=lambda cell: (cell["rank"], cell["bin"])), lambda cell: cell["rank"]):
        runs: list[tuple[int, int, int]] = []
        for cell in row:
            first, level = int(cell["bin"]), shade(cell)
            if runs and runs[-1][1:] == (first, level):
                runs[-1] = (runs[-1][0], first + width, level)
            else:
                runs.append((first, first + width, level))
        for first, last, level in runs:
            left, right = (round((min(step, end) - begin) * pixels / (end - begin), 1) for step in (first, last))
            drawn.setdefault(level, []).append(f"M{left:g},{tops[rank]}H{right:g}v{height}H{left:g}Z")
    return [(level, "".join(drawn[level])) for level in sorted(drawn)]


def _joined(cells: list[Row], begin: int, width: int) -> tuple[list[Row], int]:
    """Return the latest of the cells of each row and `width` steps, and this width."""
    latest: dict[tuple[int, int], float] = {}
    for row in cells:
        place = int(row["rank"]), begin + (int(row["bin"]) - begin) // width * width
        latest[place] = max(latest.get(place, 0.0), row["late_ms"])
    return [{"rank": rank, "bin": first, "late_ms": late_ms} for (rank, first), late_ms in latest.items()], width


def least_gap(numbers: Iterable[float]) -> float:
    """Return the least distance of neighbours; 1 of fewer than two numbers."""
    return min((after - before for before, after in pairwise(sorted(set(numbers)))), default=1)
