"""Drawn steps: neighbours stay neighbours, ranks stay together, a seed gives the same again."""

from itertools import pairwise

from support.simulated_rows import healthy_rows, healthy_runs

from drumline.lab.evaluate.curve.resampling import resample


def test_blocks_of_neighbours_are_drawn_from_one_run():
    runs = [list(range(100, 130)), list(range(200, 260))]
    drawn = resample(runs, 1000, seed=3, block=20)
    assert len(drawn) == 1000
    for at in range(0, 1000, 20):
        assert all(after == before + 1 for before, after in pairwise(drawn[at : at + 20]))
    assert {step // 100 for step in drawn} == {1, 2}


def test_a_run_shorter_than_a_block_is_drawn_as_a_whole():
    assert resample([[1, 2, 3]], 7, seed=0, block=20) == [1, 2, 3, 1, 2, 3, 1]


def test_one_seed_gives_the_same_steps_and_another_seed_does_not():
    runs = healthy_runs(healthy_rows())
    first, again, different = (resample(runs, 200, seed) for seed in (1, 1, 2))
    assert [step.step for step in first] == [step.step for step in again]
    assert [step.step for step in first] != [step.step for step in different]


def test_nothing_is_drawn_from_nothing():
    assert resample([], 20, seed=0) == []
