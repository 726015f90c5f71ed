"""Keys of state: whatever a name holds, the key leads back to it, and usual names stand in it as they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.straggler_simulator import MS, Fault, batches, ddp, simulate

from drumline.streams.core.records import job_of_key, key, key_parts, run_key
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results
from drumline.streams.stragglers.stage import JobStage

CONFIG = StragglerConfig(window_steps=12)


@given(st.lists(st.text("|\x1f01a", max_size=6), min_size=1, max_size=4))
def test_a_key_leads_back_to_its_parts(parts):
    assert key_parts(key("l", *parts), 1 + len(parts)) == ["l", *parts]


def test_usual_names_stand_as_they_are():
    assert key("l", 7, "0xdef:1,2%", "3:job|run|x") == "l|7|0xdef:1,2%|3:job|run|x"


@pytest.mark.parametrize("job", ["train", "a|b", "7:x|y", ""])
@pytest.mark.parametrize("names", [("l",), ("l", "0xdef|1", 7), ("c", "12")])
def test_a_key_leads_back_to_its_job_and_one_of_the_stage_to_none(job, names):
    assert job_of_key(key(*names, run_key(job, "r|1"))) == job
    assert job_of_key(key("t", "gpu.step.v1")) == ""


@pytest.mark.parametrize("name", ["a|b", "|", "7|x|\x1f1"])
def test_a_communicator_of_any_name_has_its_results_also_after_a_restart(name):
    stream = batches(simulate(ddp(2), 30, (Fault(1, "idle", 25 * MS, first=12, last=23),)))
    for _, batch in stream:
        if "communicator" in batch.envelope:
            batch.envelope["communicator"] = name
    stores = {}, {}
    stages = [
        (("gpu.collective.v1",), CommunicatorStage(stores[0], CONFIG)),
        (("gpu.lateness.v1", "gpu.step.v1"), JobStage(stores[1], CONFIG)),
    ]
    lateness = [b for b in results(stream, stages, CONFIG.idle_ns) if b.topic == "gpu.lateness.v1"]
    assert lateness
    again = CommunicatorStage(dict(stores[0]), CONFIG), JobStage(dict(stores[1]), CONFIG)
    assert [unit[1] for unit in again[0].states] == [name]
    [state] = again[1].states.values()
    assert set(state.sources.communicators) == {name}
    step = int(np.max(lateness[-1].columns["step"]))
    assert len(state.lateness.rows(step, name))
    assert [{job_of_key(kept) for kept in store} for store in stores] == [{stream[0][1].envelope["job"]}] * 2
    assert {communicator for cells in state.blocks.values() for _, communicator in cells.lateness} == {name}
