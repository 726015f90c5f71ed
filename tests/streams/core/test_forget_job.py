"""A job that is forgotten leaves no state in any stage, and the jobs beside it are as if it had never been there."""

import copy

import pytest
from support.labs.windows import CONFIG as WINDOWS
from support.labs.windows import T0, kernels
from support.standing_job import Job
from support.straggler_simulator import MS, Fault, batches, ddp, simulate
from support.tables import apply_batch

from drumline.streams.core.records import job_of_key
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.hangs.config import HangConfig
from drumline.streams.hangs.stage import HangStage
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.windows.kernel_frequency import KernelFrequency
from drumline.streams.windows.stage import ProcessWindows

CONFIG = StragglerConfig(window_steps=12)
STREAM = [batch for _, batch in batches(simulate(ddp(2), 30, (Fault(1, "idle", 25 * MS, first=12, last=23),)))]
KERNELS = [kernels([(1, 10, "k")], process=name) for name in ("p", "q")]
STANDING = Job({"c0": [0, 1]}).run_for(5)
STAGES = {
    "windows": (lambda store: ProcessWindows(store, WINDOWS, KernelFrequency()), KERNELS),
    "communicators": (
        lambda store: CommunicatorStage(store, CONFIG),
        [batch for batch in STREAM if batch.topic == "gpu.collective.v1"],
    ),
    "jobs": (lambda store: JobStage(store, CONFIG), [batch for batch in STREAM if batch.topic == "gpu.step.v1"]),
    "hangs": (lambda store: HangStage(store, HangConfig()), [STANDING.batch(rank) for rank in STANDING.ranks.values()]),
}


def fed(stage, inputs, *jobs):
    for offset, batch in enumerate(inputs):
        for job in jobs:
            other = copy.deepcopy(batch)
            other.envelope.update(job=job, process_id=f"{job}-{batch.envelope.get('process_id', offset)}")
            other.envelope.setdefault("sequence", offset)
            for result in apply_batch(stage, other, offset, T0):
                stage.mark_sent(result)
    return stage


@pytest.mark.parametrize("name", STAGES)
def test_a_forgotten_job_leaves_no_state_and_another_keeps_its_own(name):
    build, inputs = STAGES[name]
    store, undisturbed = {}, {}
    stage = fed(build(store), inputs, "gone", "stays")
    fed(build(undisturbed), inputs, "stays")
    assert {job_of_key(key) for key in store} == {"gone", "stays"}
    charged = stage.budget.total
    stage.forget_job("gone")
    stage.on_tick(T0, False)
    assert {job_of_key(key) for key in store} == {"stays"}
    assert store.keys() == undisturbed.keys()
    assert 0 < stage.budget.total < charged, "what it took is free again"
    stage.forget_job("gone")
    assert store.keys() == undisturbed.keys(), "twice is once"
    fed(stage, inputs, "gone")
    assert {job_of_key(key) for key in store} == {"gone", "stays"}, "it may begin anew"


@pytest.mark.parametrize("name", STAGES)
def test_results_that_are_acknowledged_later_bring_nothing_back(name):
    build, inputs = STAGES[name]
    store = {}
    stage, results = build(store), []
    for offset, batch in enumerate(inputs):
        batch = copy.deepcopy(batch)
        batch.envelope.setdefault("sequence", offset)
        results += apply_batch(stage, batch, offset, T0)
    stage.forget_job(inputs[0].envelope["job"])
    for result in results:
        stage.mark_sent(result)
    stage.on_tick(T0, False)
    assert not [key for key in store if job_of_key(key)]
    assert not stage.incidents, "no row about a quarantine names the job again"
