"""State that a worker left is read by the next program only if both mean the same by it."""

import hashlib
from dataclasses import fields

import numpy as np
import pytest
from support.pipeline_simulator import simulate_pipeline
from support.straggler_simulator import batches, ddp, simulate
from support.tables import apply_batch

from drumline.schemas.topics import Topic
from drumline.streams.core import records as packed_rows
from drumline.streams.core.batch_dedup import CONTENT
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_rows import COLLECTIVE_ROW, KIND_ROW, LATENESS_ROW, OPERATIONS
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results
from drumline.streams.stragglers.alarm import STATES, Alarm
from drumline.streams.stragglers.analysis.baseline import KEPT, STEP
from drumline.streams.stragglers.analysis.gpu_cause import SAMPLE_ROW
from drumline.streams.stragglers.analysis.host_cause import HOST_ROW
from drumline.streams.stragglers.lateness_rows import KEPT_ROW
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.stragglers.step_rows import STEP_ROW
from drumline.streams.windows.process_state import _WINDOW, Names, ProcessState

SHAPES = [COLLECTIVE_ROW, LATENESS_ROW, KIND_ROW, KEPT_ROW, STEP_ROW, SAMPLE_ROW, HOST_ROW, _WINDOW, CONTENT]
#: Parts of heads that go by names of their own, as ranks and communicators have: what is below them counts.
NAMED = ("links", "ranks", "kinds", "steps", "identity", "work")


def heads(store):
    """Kind of key -> the names in its heads."""
    written = {}
    for name in sorted(store):
        head = packed_rows.unpack_rows(store[name], np.dtype("u1")).head
        written.setdefault(name.split("|")[0], set()).update(names_in(head))
    return {kind: sorted(names) for kind, names in sorted(written.items())}


def names_in(value, above=""):
    if not isinstance(value, dict) or not value:
        return {f"{above}:{type(value).__name__}"}
    last = above.rsplit(".", 1)[-1]
    return {name for key, part in value.items() for name in names_in(part, f"{above}.{'*' if last in NAMED else key}")}


def test_a_change_of_what_is_kept_raises_the_version():
    """If it fails: raise packed_rows._VERSION, and add the new bytes beside the old ones."""
    config, first, other, process = StragglerConfig(window_steps=5, retention_steps=5), {}, {}, {}
    stages = [((Topic.COLLECTIVE,), CommunicatorStage(first, config))]
    stages.append(((Topic.LATENESS, Topic.STEP), JobStage(other, config)))
    assert list(results(batches(simulate_pipeline((1.0, 1.0), 1, 60, world=True)), stages, config.idle_ns))
    ProcessState("process", "3:job|run", Names(process, "process", "3:job|run"), {}).save(process)
    kept = [heads(store) for store in (first, other, process)]
    assert [list(kinds) for kinds in kept] == [["a", "e", "h", "m"], ["a", "c", "h", "l", "s", "v", "w"], ["p"]]
    assert {".baseline.ranks.*.idle_ns:float", ".baseline.links.*.least:int"} <= set(kept[1]["v"])
    shapes = [shape.descr for shape in SHAPES]
    text = repr([shapes, KEPT, STEP, OPERATIONS, STATES, [field.name for field in fields(Alarm)], kept])
    assert (packed_rows._VERSION, hashlib.sha256(text.encode()).hexdigest()[:12]) == (3, "a8b80ca1a0e7")


def test_state_of_another_version_is_refused():
    value = packed_rows.pack_rows(10, {}, np.zeros(1, STEP_ROW))
    for read in (packed_rows.unpack_rows, lambda data, row: packed_rows.unpack_all([value, data], row)):
        with pytest.raises(packed_rows.UnreadableValue, match="version 4, this program reads 3"):
            read(b"\x04" + value[1:], STEP_ROW)


def test_state_of_windows_of_another_length_is_refused():
    store = {}
    stage = JobStage(store, StragglerConfig(window_steps=5))
    for offset, (now_ns, batch) in enumerate(batches(simulate(ddp(2), 10, ()))):
        if batch.topic == "gpu.step.v1":
            apply_batch(stage, batch, offset, now_ns)
    assert store
    JobStage(dict(store), StragglerConfig(window_steps=5))
    with pytest.raises(ValueError, match="windows of 5 steps were kept, DRUMLINE_STREAM__WINDOW_STEPS is 20"):
        JobStage(dict(store), StragglerConfig(window_steps=20))
