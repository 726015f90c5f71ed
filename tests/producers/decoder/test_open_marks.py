"""Tests of the step that marks tell, and of marks that are open between deep windows."""

from __future__ import annotations

from drumline.producers.decoder.open_marks import MOST_OPEN, Mark, OpenMarks, StepNumber


def test_a_job_that_numbers_its_steps_is_believed_rather_than_its_optimizers():
    names = ["forward", "optimizer step 4", "step 17", "optimizer step 5", "step 1 of 2"]
    steps, seen = StepNumber(), []
    for name in names:
        begins = steps.begin(name)
        seen.append((begins, steps.number))
    assert seen == [(False, -1), (True, 4), (True, 17), (True, 17), (False, 17)]


def test_the_newest_open_marks_are_kept_and_an_ended_one_is_not():
    marks = OpenMarks()
    for number in range(MOST_OPEN + 2):
        marks.add(Mark(1, number, number, "range"))
    assert [marks.end(number) for number in (0, 1, 5, 5)] == [False, False, True, False]
    assert [mark.number for mark in marks.take()] == [number for number in range(2, MOST_OPEN + 2) if number != 5]
    assert not marks.take()
