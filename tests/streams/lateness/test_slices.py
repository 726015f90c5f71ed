"""Communicators of more ranks than a record holds: records are slices of ranks, and verdicts do not show it."""

import random

import numpy as np
import pytest
from confluent_kafka import Producer
from support.labs.stage_feed import seen
from support.straggler_simulator import MS, Fault, batches, ddp, simulate
from support.tables import apply_batch

from drumline.infra.kafka.config import producer_config
from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import check
from drumline.schemas.codec import Codec
from drumline.schemas.topics import TOPICS, Topic
from drumline.streams.core.records import run_key
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness import collective_rows, lateness_batch, stage
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import verdicts
from drumline.streams.stragglers.lateness_rows import WHOLE
from drumline.streams.stragglers.stage import JobStage

CONFIG = StragglerConfig(window_steps=12)
STREAM = batches(simulate(ddp(5), 60, (Fault(1, "idle", 25 * MS, first=12, last=35), Fault(4, "copy", 9 * MS, 2))))
SECOND = 1_000_000_000


def most_rows(monkeypatch, most):
    for module in (stage, lateness_batch):
        monkeypatch.setattr(module, "MAX_ROWS", most)


@pytest.fixture
def small_slices(monkeypatch):
    monkeypatch.setattr(collective_rows, "SLICE_RANKS", 2)
    most_rows(monkeypatch, 2)


def test_verdicts_on_slices_are_those_on_whole_steps(monkeypatch, request):
    whole = seen(verdicts(STREAM, CONFIG))
    request.getfixturevalue("small_slices")
    assert seen(verdicts(STREAM, CONFIG)) == whole


@pytest.mark.parametrize("seed", range(3))
def test_slices_that_come_again_after_a_restart_change_nothing(seed, request):
    """The straggler stage restarts from its store at any slice, and reads some slices again."""
    whole, chance = seen(verdicts(STREAM, CONFIG)), random.Random(seed)
    request.getfixturevalue("small_slices")
    lateness, log = CommunicatorStage({}, CONFIG), []
    for offset, (time_ns, batch) in enumerate(STREAM):
        if batch.topic == Topic.COLLECTIVE:
            log += [(time_ns, late) for late in apply_batch(lateness, batch, offset, time_ns)]
        else:
            log.append((time_ns, batch))
    assert len({tuple(b.envelope["rank_list"]) for _, b in log if b.topic == Topic.LATENESS}) >= 3
    store, published, at = {}, [], 0
    jobs = JobStage(store, CONFIG)

    def keep(results):
        for result in results:
            published.append(result)
            jobs.mark_sent(result)

    while at < len(log):
        time_ns, batch = log[at]
        keep(apply_batch(jobs, batch, at, time_ns))
        at += 1
        if chance.random() < 0.05:
            jobs, at = JobStage(store, CONFIG), max(0, at - chance.randrange(8))
    for _ in range(3):
        time_ns += 2 * CONFIG.idle_ns
        keep(jobs.on_tick(time_ns, True))
    assert seen(published) == whole


def test_a_step_is_complete_with_its_last_slice(small_slices):
    lateness, complete = CommunicatorStage({}, CONFIG), {}
    for offset, (time_ns, batch) in enumerate(STREAM):
        if batch.topic == Topic.COLLECTIVE:
            for late in apply_batch(lateness, batch, offset, time_ns):
                for step in late.columns["step"].tolist():
                    complete.setdefault(step, []).append(late.envelope["complete_step"] >= step)
    assert {tuple(flags) for flags in complete.values()} == {(False, False, False, False, True)}


def test_slices_replace_whole_steps_and_are_replaced_by_offset(small_slices, monkeypatch):
    """More ranks join, or the lateness stage forgot some: the newest form of a step counts, and no rank twice."""
    lateness, jobs, name = CommunicatorStage({}, CONFIG), JobStage({}, CONFIG), run_key("job", "run")
    taken = [(time_ns, b) for time_ns, b in STREAM if b.topic == Topic.COLLECTIVE and b.columns["step"][0] == 0]
    for offset, (time_ns, batch) in enumerate(taken):
        apply_batch(lateness, batch, offset, time_ns)
    [state] = lateness.states.values()

    def emitted(most, time_ns=taken[-1][0] + SECOND):
        most_rows(monkeypatch, most)
        state.dirty = {0}
        return lateness.on_tick(time_ns, False)

    def stored(parts):
        job = jobs.states[name]
        [communicator] = job.communicators.members
        assert tuple(job.lateness.parts(job.blocks[0].lateness, 0, communicator)) == parts
        rows = [job.lateness.rows(0, communicator, part) for part in parts]
        assert sum(not name.startswith("a|") for name in jobs.store) == 1 + len(parts)
        return np.concatenate(rows)["rank"].tolist()

    whole, slices = emitted(99), emitted(2)
    uncut, cut = (WHOLE,), (0, 1, 2)
    for form, first, parts in ((whole, 0, uncut), (slices, 1, cut), (whole, 4, uncut), (slices, 1, uncut)):
        for offset, batch in enumerate(form, first):
            apply_batch(jobs, batch, offset, SECOND)
        assert stored(parts) == [0, 1, 2, 3, 4]


RANKS = 50_000


def collective(rank: int) -> Batch:
    """One step of a rank in a communicator of all, with durations that compress badly."""
    dice = np.random.default_rng(rank)
    columns = {"step": np.zeros(3, np.int64), "ordinal": np.arange(3), "start_ns": np.arange(3) * SECOND}
    columns |= {"duration_ns": dice.integers(500_000, 1 << 40, 3), "covered_ns": dice.integers(0, 1 << 40, 3)}
    columns |= {"operation": np.zeros(3, "u1"), "bytes": np.full(3, 1 << 20)}
    identity = {"job": "job", "run": "run", "rank": rank, "world_size": RANKS, "host": f"host{rank // 8:05d}"}
    identity |= {"gpu_uuid": f"GPU-{dice.bytes(16).hex()}", "communicator": "c", "operations": ["AllReduce"]}
    return Batch(Topic.COLLECTIVE, {**identity, "complete_step": 0, "rows": 3}, columns)


@pytest.mark.stack
@pytest.mark.long
def test_the_lateness_of_50_000_ranks_fits_into_records_that_the_broker_takes(stack, new_topic, monkeypatch):
    """Today's limit is set on the topic. Even without compression no slice exceeds it."""
    config = StragglerConfig()
    lateness, slices = CommunicatorStage({}, config), []
    for rank in range(RANKS):
        slices += apply_batch(lateness, collective(rank), rank, SECOND)
    limit = next(spec.config["max.message.bytes"] for spec in TOPICS if spec.topic == Topic.LATENESS)
    topic, codec = new_topic(**{"max.message.bytes": limit}), Codec()
    producer = Producer({**producer_config(stack, "test"), "compression.type": "none", "message.max.bytes": 10**8})
    errors = []
    for batch in slices:
        check(batch)
        producer.produce(topic, codec.encode(batch), on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None] * 13
    jobs = JobStage({}, config)
    for offset, batch in enumerate(slices):
        apply_batch(jobs, codec.decode(Topic.LATENESS, codec.encode(batch)), offset, SECOND)
    [state] = jobs.states.values()
    assert (state.communicators.members["c"], state.sources.communicators["c"].complete) == (tuple(range(RANKS)), 0)
    parts = state.blocks[0].lateness[0, "c"]
    joined = np.concatenate([state.lateness.rows(0, "c", part) for part in sorted(parts)])
    most_rows(monkeypatch, RANKS)
    [of_stage] = lateness.states.values()
    of_stage.dirty = {0}
    [whole] = lateness.on_tick(SECOND, False)
    assert len(codec.encode(whole)) > 4 * int(limit)
    for column in joined.dtype.names:
        assert np.array_equal(joined[column], whole.columns[column])
