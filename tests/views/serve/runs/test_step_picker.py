"""The strip of steps around a step: which steps it has, where it leads, and when they fit one file."""

import json

import pytest

from drumline.views.serve.runs.step_picker import AROUND, POINTS, step_picker
from drumline.views.serve.runs.trace import MOST_STEPS
from drumline.views.serve.timeline import StepPage

ROWS = [{"bin": step, "median_ms": 10.0 + step, "shortest_ms": 9.0, "longest_ms": 20.12345} for step in range(3)]


def picker(step=100, first=None, last=None, rank=1, rows=ROWS):
    """The strip of a page, and the parameters of its query."""
    page = StepPage("a/b", {"run": "r1"}, step, rank, [], [{"rank": 1}, {"rank": 4}], 1.0, [])
    given = []

    def query(sql, parameters):
        given.append(parameters)
        return rows

    return step_picker(query, page, first, last), given[0]


@pytest.mark.parametrize(
    ("step", "first", "last", "shown"),
    [(100, None, None, (100 - AROUND, 100 + AROUND)), (3, None, None, (0, 3 + AROUND)), (100, 90, 110, (90, 110)),
     (100, -9, 5, (0, 5)), (100, 50, 7, (50, 50))],
)  # fmt: skip
def test_steps_around_the_chosen_one_are_shown_or_those_in_the_address(step, first, last, shown):
    strip, given = picker(step, first, last)
    assert (strip.first, strip.last) == shown == (given["first"], given["last"])
    assert given["ranks"] == [1, 4]


def test_many_steps_are_few_points():
    strip, given = picker(100, 0, 10 * POINTS - 1)
    assert (strip.width, given["width"]) == (10, 10)


def test_the_address_keeps_step_and_rank():
    strip, _ = picker(100, 90, 110)
    assert strip.closer() == "/job/a%2Fb/step/100?run=r1&from_step=95&to_step=105&rank=1"
    assert strip.wider() == "/job/a%2Fb/step/100?run=r1&from_step=79&to_step=121&rank=1"
    single, _ = picker(100, 100, 100)
    assert single.closer() == ""
    assert "from_step=99&to_step=101" in single.wider()


def test_few_steps_are_one_file():
    assert picker(100, 90, 90 + MOST_STEPS - 1)[0].file() == (
        f"/job/a%2Fb/step/90/timeline.pftrace?run=r1&ranks=1,4&last={90 + MOST_STEPS - 1}"
    )
    assert picker(100, 90, 90 + MOST_STEPS)[0].file() == ""


def test_a_point_leads_to_its_step_beside_the_same_steps():
    values = json.loads(picker(1, 0, 2)[0].values())
    assert values["path"] == "/job/a%2Fb/step/"
    assert values["query"] == "run=r1&from_step=0&to_step=2&rank=1"
    assert values["rows"] == [[0, 10.0, 9.0, 20.12], [1, 11.0, 9.0, 20.12], [2, 12.0, 9.0, 20.12]]
    assert values["domain"] == [0, 3]
