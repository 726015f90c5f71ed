"""State that a worker left is read by the next program only if both mean the same by it."""

import hashlib

import numpy as np
import pytest
from straggler_sim import batches, ddp, simulate

from drumline.streams import packed_rows
from drumline.streams.budgets import STEP_ROW
from drumline.streams.devices import SAMPLE_ROW
from drumline.streams.job_stage import JobStage
from drumline.streams.matching import COLLECTIVE_ROW, KIND_ROW, LATENESS_ROW
from drumline.streams.past import KEPT, STEP
from drumline.streams.thresholds import StragglerConfig

SHAPES = [COLLECTIVE_ROW, LATENESS_ROW, KIND_ROW, STEP_ROW, SAMPLE_ROW]


def test_a_change_of_what_is_kept_raises_the_version():
    """It failed? Raise packed_rows._VERSION, and put what is here now beside it."""
    text = repr([[shape.descr for shape in SHAPES], KEPT, STEP])
    assert (packed_rows._VERSION, hashlib.sha256(text.encode()).hexdigest()[:12]) == (2, "60c7eb496597")


def test_state_of_an_older_version_is_refused():
    value = packed_rows.pack_rows(7, {}, np.zeros(1, STEP_ROW))
    with pytest.raises(ValueError, match="version 1, this program reads 2"):
        packed_rows.unpack_rows(b"\x01" + value[1:], STEP_ROW)


def test_state_of_windows_of_another_length_is_refused():
    store = {}
    stage = JobStage(store, StragglerConfig(window_steps=5))
    for offset, (now_ns, batch) in enumerate(batches(simulate(ddp(2), 10, ()))):
        if batch.topic == "gpu.step.v1":
            stage.on_batch(batch, offset, now_ns)
    assert store
    JobStage(dict(store), StragglerConfig(window_steps=5))
    with pytest.raises(ValueError, match="windows of 5 steps were kept, DRUMLINE_STREAM__WINDOW_STEPS is 20"):
        JobStage(dict(store), StragglerConfig(window_steps=20))
