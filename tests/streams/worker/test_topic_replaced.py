"""A topic that is recreated numbers its records from 0 again: nothing in it was seen before."""

import asyncio

import numpy as np
import pytest
from support.labs.windows import T0, S, kernels
from support.tables import apply_batch

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.acls import ExistingTopic
from drumline.infra.kafka.connect import BrokerUnreachable
from drumline.infra.telemetry.health import Health
from drumline.schemas.parts.joining import position
from drumline.streams.core.records import pack_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.windows.config import WindowConfig
from drumline.streams.windows.kernel_frequency import KernelFrequency
from drumline.streams.windows.stage import ProcessWindows
from drumline.streams.worker.checks.preflight import WorkerTopics
from drumline.streams.worker.checks.topic_watch import POLL_S, TopicWatch, find_change
from drumline.streams.worker.offsets import OFFSETS, TopicPositions, stored_topic, was_replaced

KERNEL, STEP, HANG = "gpu.kernel.v1", "gpu.step.v1", "gpu.hang.v1"


def test_positions_rise_from_one_topic_of_a_name_to_the_next():
    store = {}
    assert [TopicPositions(store, {KERNEL: "a"}).position_of(KERNEL, n) for n in (0, 29)] == [0, position(29, 0)]
    assert TopicPositions(store, {KERNEL: "a"}).position_of(KERNEL, 30) == position(30, 0)  # the worker started again
    assert not was_replaced(store["t|" + KERNEL], "a")
    assert was_replaced(store["t|" + KERNEL], "b")
    assert TopicPositions(store, {KERNEL: "b"}).position_of(KERNEL, 0) == OFFSETS
    assert TopicPositions(store, {KERNEL: "b"}).position_of(KERNEL, 1) == OFFSETS + position(1, 0)
    assert TopicPositions(store, {KERNEL: "c"}).position_of(KERNEL, 0) == 2 * OFFSETS


def test_topics_of_one_stage_are_distinguished():
    store = {}
    first = TopicPositions(store, {KERNEL: "a", STEP: "a"})
    first.position_of(KERNEL, 5), first.position_of(STEP, 5)
    then = TopicPositions(store, {KERNEL: "b", STEP: "a"})
    assert (then.position_of(KERNEL, 6), then.position_of(STEP, 6)) == (OFFSETS + position(6, 0), position(6, 0))


def test_state_without_an_id_is_taken_for_the_topic_that_is_there():
    store = {}
    assert TopicPositions(store, {}).position_of(KERNEL, 5) == position(5, 0)
    assert store == {}
    assert TopicPositions(store, {KERNEL: "a"}).position_of(KERNEL, 6) == position(6, 0)
    assert stored_topic(store["t|" + KERNEL]) == ("a", 0)
    assert not was_replaced(store["t|" + KERNEL], "")


def test_an_id_of_another_version_is_refused_before_any_record():
    value = pack_rows(-1, {"id": "a", "before": 0}, np.zeros(0, "u1"))
    with pytest.raises(ValueError, match="version 127"):
        TopicPositions({"t|" + KERNEL: b"\x7f" + value[1:]}, {KERNEL: "a"})


def windows(store):
    return ProcessWindows(store, WindowConfig(), KernelFrequency())


def numbered(sequence, watermark=0):
    batch = kernels([(sequence, 1, "k")], watermark)
    batch.envelope["sequence"] = sequence
    return batch


def test_records_of_the_new_topic_are_counted_and_duplicates_recognised():
    store = {}
    stage, positions = windows(store), TopicPositions(store, {KERNEL: "a"})
    for sequence in range(5):
        apply_batch(stage, numbered(sequence), positions.position_of(KERNEL, sequence), T0)
    assert apply_batch(stage, numbered(4), positions.position_of(KERNEL, 4), T0) == []
    assert stage.duplicates == 1

    stage, positions = windows(store), TopicPositions(store, {KERNEL: "b"})
    out = []
    for offset, sequence in enumerate([4, 5, 6]):  # the first was published into both
        for result in apply_batch(
            stage, numbered(sequence, watermark=20), positions.position_of(KERNEL, offset), T0 + 30 * S
        ):
            stage.mark_sent(result)
            out.append(result)
    assert stage.duplicates == 1
    whole = [batch for batch in out if batch.envelope["window_start_ns"] == T0][-1]
    assert whole.columns["launches"].tolist() == [7]


def test_what_is_kept_of_a_topic_is_nothing_to_a_stage():
    store = {}
    TopicPositions(store, {KERNEL: "a"}).position_of(KERNEL, 0)
    assert windows(dict(store)).processes == {}
    assert CommunicatorStage(dict(store), StragglerConfig()).states == {}
    assert JobStage(dict(store), StragglerConfig()).states == {}


STARTED = WorkerTopics(4, {KERNEL: "a", STEP: "b"})


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (ExistingTopic("a", 4), ""),
        (None, ""),
        (
            ExistingTopic("c", 4),
            "topic gpu.kernel.v1 was recreated while this worker ran; restart it",
        ),
        (ExistingTopic("a", 6), "topic gpu.kernel.v1 has 6 partitions now, 4 when this worker started"),
    ],
)
def test_what_has_changed_is_reported(now, expected):
    topics = {KERNEL: now, STEP: ExistingTopic("b", 4)}
    text = find_change(STARTED, topics)
    assert text.startswith(expected)
    assert bool(text) == bool(expected)


@pytest.mark.parametrize(("now", "expected"), [(1, ""), (2, "topic gpu.hang.v1 has 2 partitions now, 1 when")])
def test_a_topic_that_no_worker_reads_may_have_its_own_number_of_partitions(now, expected):
    started = WorkerTopics(4, {KERNEL: "a", HANG: "b"}, {KERNEL: 4, HANG: 1})
    text = find_change(started, {KERNEL: ExistingTopic("a", 4), HANG: ExistingTopic("b", now)})
    assert text.startswith(expected)
    assert bool(text) == bool(expected)


def test_the_watch_polls_and_reports_a_deleted_topic():
    answers = [BrokerUnreachable("away"), {KERNEL: None, STEP: ExistingTopic("b", 4)}, {KERNEL: ExistingTopic("c", 4)}]
    polled, health = [], Health()
    health.set_reason("start", "")

    def poll_topics(settings, names):
        polled.append(sorted(names))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run():
        watch = TopicWatch(Settings(), STARTED, health, poll_topics)
        seen = []
        for now in (0.0, 1.0, POLL_S, POLL_S + 1, 2 * POLL_S, 3 * POLL_S):
            watch.observe(now)
            if watch._task is not None:
                await watch._task
            seen.append((len(polled), health.ready().get("topics", ""), watch.changed != ""))
        return seen

    deleted = "deleted: gpu.kernel.v1"
    expected = [(0, "", False), (0, "", False), (1, "", False), (1, "", False), (2, deleted, False), (3, "", True)]
    assert asyncio.run(run()) == expected
    assert polled[0] == sorted([KERNEL, STEP])
