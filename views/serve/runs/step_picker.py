"""The strip of step times around a step: a click opens another one, a drag shows fewer, a file has them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from drumline.views.report.charts import NUMBERS, SLIM, WIDTH, Spec, field
from drumline.views.report.data import Query, Row
from drumline.views.serve.addresses import job_url, trace_url
from drumline.views.serve.runs.trace import MOST_STEPS
from drumline.views.serve.timeline import StepPage

#: Steps before and behind the chosen one, of which the strip is at first; points of it at most.
AROUND, POINTS = 50, 200

# Of the drawn ranks alone: the table is sorted by rank.
STEPS = """
SELECT intDiv(step - {first:Int64}, {width:Int64}) * {width:Int64} + {first:Int64} AS bin,
       quantileExactInclusive(0.5)(gpu_duration_ns) / 1e6 AS median_ms, min(gpu_duration_ns) / 1e6 AS shortest_ms,
       max(gpu_duration_ns) / 1e6 AS longest_ms
FROM steps WHERE job = {job:String} AND run = {run:String} AND rank IN {ranks:Array(Int32)}
    AND step BETWEEN {first:Int64} AND {last:Int64} AND gpu_duration_ns > 0
GROUP BY bin ORDER BY bin
"""


@dataclass(frozen=True)
class StepPicker:
    """Holds the step times of the ranks of `page` from `first` to `last`, in `rows` of `width` steps each; ms."""

    page: StepPage
    first: int
    last: int
    width: int
    rows: list[Row]

    def address(self, first: int, last: int) -> str:
        """Return the address of the same step beside others, from `first` to `last`."""
        page = self.page
        return job_url(page.job, page.run["run"], rank=page.rank, step=page.step, from_step=first, to_step=last)

    def closer(self) -> str:
        """Return the address of half as many steps around the chosen one; "" where one is shown."""
        half = (self.last - self.first) // 4
        return self.address(max(0, self.page.step - half), self.page.step + half) if self.last > self.first else ""

    def wider(self) -> str:
        """Return the address of twice as many steps and more."""
        span = self.last - self.first + 1
        return self.address(max(0, self.first - span // 2 - 1), self.last + span // 2 + 1)

    def file(self) -> str:
        """Return the address of the shown steps as a file for Perfetto; "" where they are too many for one."""
        ranks = [row["rank"] for row in self.page.drawn]
        if self.last - self.first >= MOST_STEPS:
            return ""
        return trace_url(self.page.job, self.page.run["run"], self.first, ranks, self.last)

    def spec(self, width: int = WIDTH) -> Spec:
        """Return the chart: median of the ranks, from shortest to longest as a band, and the chosen step as a line."""
        x = field("bin", "quantitative", "step", axis={"format": "d", "grid": False, "tickMinStep": 1},
                  scale={"domain": [self.first, self.last + 1], "nice": False})  # fmt: skip
        axis = {"axis": {"tickCount": 3, **NUMBERS}, "scale": {"zero": True, "nice": 3}}
        y = field("shortest_ms", "quantitative", "step, ms", **axis)
        median = field("median_ms", "quantitative", "step, ms", **axis)
        chosen = {"data": {"values": [{"at": self.page.step}]}, "mark": {"type": "rule", "color": "var(--late)"},
                  "encoding": {"x": {**x, "field": "at"}}}  # fmt: skip
        return {
            "height": 90, "width": width if width == SLIM else 850, "data": {"values": self.rows},
            "layer": [
                {"mark": {"type": "area", "color": "var(--series-1)", "opacity": 0.3},
                 "encoding": {"x": x, "y": y, "y2": {"field": "longest_ms"}}},
                {"mark": {"type": "line", "color": "var(--series-1)", "strokeWidth": 1.5, "point": {"size": 12}},
                 "encoding": {"x": x, "y": median}},
                chosen,
            ],
        }  # fmt: skip

    def values(self) -> str:
        """Return the values for the page's script: a click opens a step, a drag the address of fewer steps."""
        columns = ("median_ms", "shortest_ms", "longest_ms")
        path, _, query = self.address(self.first, self.last).partition("?")
        values: dict[str, Any] = {
            "kind": "lines", "axis": "step", "unit": "ms", "domain": [self.first, self.last + 1], "width": self.width,
            "names": ["median", "shortest", "longest"],
            "rows": [[int(row["bin"]), *(float(f"{row[column]:.4g}") for column in columns)] for row in self.rows],
            "path": path.removesuffix(str(self.page.step)), "query": query,
        }  # fmt: skip
        return json.dumps(values, separators=(",", ":"))


def step_picker(query: Query, page: StepPage, first: int | None, last: int | None) -> StepPicker:
    """Load the strip; without `first` and `last` of steps around that of the page. Raises the query's errors."""
    begin = max(0, page.step - AROUND if first is None else first)
    end = max(begin, page.step + AROUND if last is None else last)
    width = -(-(end - begin + 1) // POINTS)
    ranks = [row["rank"] for row in page.drawn]
    scope = {"job": page.job, "run": page.run["run"], "ranks": ranks, "first": begin, "last": end, "width": width}
    return StepPicker(page, begin, end, width, query(STEPS, scope))
