"""A pipeline whose stages differ by design: the job's row states it once, and no rank is at fault."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.pipeline_simulator import simulate_pipeline
from support.straggler_simulator import MS, Fault, batches
from support.worlds import engine
from support.worlds.durations import recorded_weights
from support.worlds.layout import Slowed, World
from support.worlds.rows import world_batches

from drumline.producers.replay.published import read_published
from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.offline import latest, verdicts
from drumline.streams.stragglers.analysis.pipelines import unequal_stages

PUBLISHED = Path(__file__).parents[2] / "data" / "published"
CONFIG = StragglerConfig(window_steps=4)
LENGTHS = {"forward": 1.0, "backward": 2.0}
UNEQUAL = (1.0, 1.0, 1.3, 1.0)


def stated(stream, config=CONFIG):
    """First step -> what the job's row states of its stages, where it does."""
    of_windows = {}
    for (*_, first), batch in sorted(latest(verdicts(stream, config)).items()):
        at = batch.columns["rank"].tolist().index(-1)
        stages = json.loads(batch.strings("evidence_json", "evidence")[at]).get("stages")
        if stages:
            assert batch.columns["severity"][at] == OK
            of_windows[first] = stages
    return of_windows


def world_of(weights, **shape):
    return World(pipeline=len(weights), data=2, weights=weights, **shape)


def true_bubble(world, steps):
    """Part of the steps' time that would not pass if all stages worked as long as their mean."""
    equal = world_of((sum(world.weights) / len(world.weights),) * len(world.weights), microbatches=world.microbatches)
    return 1.0 - engine.run(equal, steps).time_ns(1, steps - 1) / engine.run(world, steps).time_ns(1, steps - 1)


@pytest.fixture
def steady(monkeypatch):
    """All forward passes of a stage last as long, and backward ones twice as long."""
    monkeypatch.setattr(engine, "drawn", lambda table, stage, name, random, shape: np.full(shape, LENGTHS[name]))


@pytest.mark.parametrize("light", [False, True], ids=["cupti", "light"])
@pytest.mark.parametrize(("longest", "microbatches"), [(3, 4), (3, 8), (2, 8), (2, 32), (1, 32)])
def test_the_longest_stage_and_its_bubble_are_those_of_the_schedule(longest, microbatches, light, steady):
    """One forward, one backward: each later stage hides one forward pass of the longest one, which counts as bubble."""
    world = world_of(tuple(1.3 if stage == longest else 1.0 for stage in range(4)), microbatches=microbatches)
    [of_job] = stated(world_batches(engine.run(world, 40), light)).values()
    assert (of_job["longest"], of_job["of"], of_job["rank"]) == (longest, 4, 2 * longest)
    assert of_job["longer"] == pytest.approx(0.3, abs=0.01)
    hidden = (3 - longest) * 1.3 / (3 * 1.3 * microbatches)
    true = true_bubble(world, 40)
    assert true - 0.01 <= of_job["bubble"] <= true + 0.01 + hidden


def test_with_one_batch_a_step_no_stage_makes_others_wait_longer():
    assert stated(world_batches(engine.run(world_of(UNEQUAL, microbatches=1), 40))) == {}


def test_forward_passes_before_all_backward_ones_have_the_same_bubble():
    job, equal = (simulate_pipeline(weights, 2, 40) for weights in (UNEQUAL, (1.075,) * 4))
    took, without = (sum(row["duration_ns"] for row in rows.steps[0]) for rows in (job, equal))
    [of_job] = stated(batches(job)).values()
    assert of_job["bubble"] == pytest.approx(1.0 - without / took, abs=0.015)


def test_equal_stages_are_not_mentioned():
    assert stated(world_batches(engine.run(world_of((1.0,) * 4), 40))) == {}


def test_a_late_rank_is_no_stage():
    world = world_of((1.0,) * 4, microbatches=32)
    assert stated(world_batches(engine.run(world, 60, (Slowed(0, "compute", 1.5, 12, 59),)))) == {}


def test_a_stage_that_changes_is_stated_again_and_one_that_does_not_is_not():
    """A job may balance its layers anew."""
    first, then = ({"step": 100, "work": {"0": zero, "2": two}} for zero, two in ((80, 50), (50, 80)))
    before = unequal_stages([first] * 3, {}, CONFIG)
    assert (before["rank"], before["longest"], before["longer"]) == (0, 0, 0.6)
    assert unequal_stages([first] * 9, before, CONFIG) == {}
    assert unequal_stages([{"step": 100, "work": {"0": 79, "2": 50}}] * 9, before, CONFIG) == {}
    assert unequal_stages([first] * 9 + [then] * 9, before, CONFIG) == {}, "it may be chance"
    assert unequal_stages([first] * 2 + [then] * 30, before, CONFIG)["rank"] == 2
    assert unequal_stages([{"step": 66, "work": {"0": 65, "2": 65}}] * 9, before, CONFIG) == {}, "no stage is longer"


def test_of_two_stages_that_work_as_long_the_one_stated_before_stays():
    windows = [{"step": 100, "work": {"0": 50, "1": 80, "2": 80 + number % 2}} for number in range(16)]
    before = unequal_stages(windows[:3], {}, CONFIG)
    assert [unequal_stages(windows[:end], before, CONFIG) for end in range(4, 17)] == [{}] * 13


def test_it_is_stated_once_however_many_windows_follow():
    recording = simulate_pipeline(UNEQUAL, 2, 300)
    assert len(stated(batches(recording), StragglerConfig(window_steps=2, history_windows=8))) == 1


def test_without_replicas_a_late_rank_of_a_later_phase_is_no_design():
    fault = Fault(1, "idle", 20 * MS, first=60)
    assert stated(batches(simulate_pipeline((1.0, 1.0, 1.0), 1, 160, (fault,)))) == {}


@pytest.mark.parametrize("tier", ["cupti", "light"])
@pytest.mark.parametrize("name", [pytest.param("zoo-pipeline", marks=pytest.mark.long), "zoo-once-pipeline"])
def test_stages_that_hosts_hold_back_by_turns_are_not_mentioned(name, tier):
    """The second stage computes 12 % longer, 3 ms of 75; hosts leave either GPU idle for 15 to 30 ms a step."""
    assert stated(read_published(PUBLISHED / name / tier), StragglerConfig()) == {}


def test_the_weights_of_a_published_job_are_stated_by_its_last_stage():
    weights = recorded_weights("ST")
    [of_job] = stated(world_batches(engine.run(world_of(weights), 40))).values()
    assert of_job["longest"] == len(weights) - 1
