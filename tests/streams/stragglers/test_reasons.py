"""A row without a verdict has a detail: why nothing could be compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.labs.attribution import CONFIG
from support.labs.verdict_rows import rows_of
from support.pipeline_simulator import simulate_pipeline
from support.straggler_simulator import MS, Fault, batches, ddp, simulate

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import INSUFFICIENT, StragglerConfig

JOB = -1
PLAIN = batches(simulate(ddp(4), 24))


def reasons(stream, config=CONFIG):
    """Return first step -> the details of its rows, the job's first; "" of those with a verdict."""
    severities = rows_of(stream, "severity", config=config)
    details = rows_of(stream, "detail", "details", config)
    return {
        first: [details[first][rank] if severity == INSUFFICIENT else "" for rank, severity in sorted(of.items())]
        for first, of in severities.items()
    }


def kept(stream, is_kept, topics=(Topic.COLLECTIVE, Topic.STEP)):
    """Return the stream with the rows for which `is_kept`(rank, step)."""
    out = []
    for time_ns, batch in stream:
        if batch.topic in topics:
            keep = np.array([is_kept(batch.envelope["rank"], step) for step in batch.columns["step"].tolist()])
            columns = {name: values[keep] for name, values in batch.columns.items()}
            batch = Batch(batch.topic, {**batch.envelope, "rows": int(keep.sum())}, columns)
        out.append((time_ns, batch))
    return out


def test_ranks_that_are_not_recorded_are_missing():
    recorded = [item for item in PLAIN if item[1].envelope["rank"] < 3]
    assert reasons(recorded) == {first: ["ranks_missing"] * 4 for first in (0, 12)}


def test_a_rank_without_steps_in_a_window_is_known_by_its_other_steps():
    stream = kept(PLAIN, lambda rank, step: rank != 3 or step < 12)
    assert reasons(stream) == {0: [""] * 5, 12: ["few_steps_recorded"] * 4}


def test_few_steps_of_one_rank_are_the_reason_of_the_job():
    stream = kept(PLAIN, lambda rank, step: rank != 3 or step % 4 == 0)
    assert reasons(stream)[0] == ["few_steps_recorded"] * 5


def test_ranks_that_never_meet_have_no_collectives():
    stream = [item for item in PLAIN if item[1].topic == Topic.STEP]
    assert reasons(stream) == {first: ["no_collectives"] * 5 for first in (0, 12)}


def test_ranks_that_call_unlike_collectives_are_not_short_of_steps():
    stream = []
    for time_ns, batch in PLAIN:
        rank = batch.envelope["rank"]
        if batch.topic == Topic.COLLECTIVE:
            keep = batch.columns["ordinal"] <= rank
            columns = {name: values[keep] for name, values in batch.columns.items()}
            batch = Batch(batch.topic, {**batch.envelope, "rows": int(keep.sum())}, columns)
        stream.append((time_ns, batch))
    assert reasons(stream) == {first: ["unlike_collectives"] * 5 for first in (0, 12)}


def test_a_stage_with_replicas_is_short_of_steps_and_not_of_a_past():
    """A profiler that records every fifth step or so."""
    job = batches(simulate_pipeline((1.0, 1.2), 2, 48))
    assert reasons(kept(job, lambda _, step: step % 5 == 1))[12] == ["few_steps_recorded"] * 5


def test_a_pipeline_without_replicas_waits_for_its_past_as_a_job_too():
    result = reasons(batches(simulate_pipeline((1.0, 1.2), 1, 60)))
    assert list(result.values()) == [["no_past"] * 3] * 3 + [[""] * 3] * 2


@pytest.mark.parametrize(("window_steps", "expected"), [(1, "no_past"), (2, "few_steps_recorded")])
def test_one_step_shows_no_health(window_steps, expected):
    job = batches(simulate(ddp(4), 2, (Fault(1, "idle", 20 * MS),)))
    config = StragglerConfig(window_steps=window_steps)
    assert reasons(kept(job, lambda _, step: step == 0), config)[0] == [expected] * 5


def test_windows_of_one_step_are_evaluated_by_those_before():
    job = batches(simulate(ddp(4), 12, (Fault(1, "idle", 20 * MS, first=6),)))
    result = reasons(job, replace(CONFIG, window_steps=1))
    assert [of[0] for of in result.values()] == ["no_past"] * 3 + [""] * 9
