"""The batches-up job of `bench scale`: its parts agree, and the stages find the rank that it makes late."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from drumline.lab.bench.benchmarks.scale import BY_RANK, RANKS, Hosts, planned, sampled
from drumline.lab.bench.simulated_job import (
    AXES,
    RANKS_PER_HOST,
    STEP_NS,
    SimulatedJob,
    collectives,
    joined_steps,
    lateness,
    rank_batches,
)
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import WARNING, StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results
from drumline.streams.stragglers.stage import JobStage

BEGIN = 1_700_000_000 * 10**9


@pytest.mark.parametrize("ranks", RANKS)
def test_every_rank_is_in_one_communicator_of_each_axis(ranks):
    job = SimulatedJob(ranks, 1, BEGIN)
    members = Counter((c.axis, rank) for c in job.communicators() for rank in c.ranks)
    assert set(members.values()) == {1}
    assert len(members) == ranks * len(AXES)
    assert all(len(c.ranks) > 1 for c in job.communicators())


def test_a_number_of_ranks_without_equal_replicas_is_refused():
    with pytest.raises(ValueError, match="7 ranks"):
        SimulatedJob(7, 1, BEGIN).communicators()


def test_large_jobs_are_sampled_and_the_late_rank_is_in_the_sample():
    job = SimulatedJob(16_384, 22, BEGIN)
    chosen = sampled(job)
    assert sum(len(c.ranks) for c in chosen) * job.steps < 110_000
    assert {c.axis for c in chosen if job.late in c.ranks} == set(AXES)
    small = SimulatedJob(64, 22, BEGIN)
    assert len(sampled(small)) == len(small.communicators())


def evaluated(batches, *stages):
    config = StragglerConfig()
    stages_built = [stage({}, config) for stage in stages]
    reads = {CommunicatorStage: (Topic.COLLECTIVE,), JobStage: (Topic.LATENESS, *BY_RANK)}
    pairs = [(reads[type(stage)], stage) for stage in stages_built]
    timed = sorted(batches, key=lambda timed: timed.time_ns)
    codec = Codec()
    read = ((t.time_ns, codec.decode(t.batch.topic, codec.encode(t.batch))) for t in timed)
    return list(results(read, pairs, config.idle_ns))


def test_the_lateness_that_is_made_up_is_the_stages_own():
    job = SimulatedJob(64, 6, BEGIN)

    def rows(batches):
        row_of = {}
        for batch in batches:
            for i in range(batch.rows):
                place = batch.envelope["communicator"], int(batch.columns["rank"][i]), int(batch.columns["step"][i])
                texts = batch.strings("host", "hosts")[i], batch.strings("gpu_uuid", "gpu_uuids")[i]
                numbers = tuple(int(batch.columns[n][i]) for n in ("lateness_ns", "wait_ns", "collectives"))
                row_of[place] = (*texts, *numbers)
        return row_of

    whole = rows(evaluated(collectives(job, job.communicators()), CommunicatorStage))
    assert len(whole) == 64 * 6 * len(AXES)
    assert rows(timed.batch for timed in lateness(job)) == whole


@pytest.mark.parametrize("ranks", [4, 32])
def test_the_stages_name_the_late_rank_and_no_other(ranks):
    job = SimulatedJob(ranks, 22, BEGIN)
    batches = evaluated([*rank_batches(job, BY_RANK), *lateness(job)], JobStage)
    named = {
        int(rank)
        for batch in batches
        if batch.topic == Topic.STRAGGLER
        for rank in batch.columns["rank"][np.asarray(batch.columns["severity"]) >= WARNING]
    }
    assert named - {-1} == {job.late}


def test_every_batch_can_be_published():
    job, codec = SimulatedJob(4, 2, BEGIN), Codec()
    batches = [*rank_batches(job, [*BY_RANK, Topic.PROGRESS]), *collectives(job, job.communicators()), *lateness(job)]
    assert {timed.batch.topic for timed in batches} == {*BY_RANK, Topic.PROGRESS, Topic.COLLECTIVE, Topic.LATENESS}
    for timed in batches:
        back = codec.decode(timed.batch.topic, codec.encode(timed.batch), timed.time_ns // 10**6)
        assert back.rows == timed.batch.rows


@pytest.mark.parametrize("ranks", RANKS)
def test_a_job_of_bench_scale_has_whole_records_of_its_hosts(ranks):
    job, joined = planned(ranks), joined_steps(ranks)
    first_ends = job.begin_ns + STEP_NS
    assert job.steps > StragglerConfig().window_steps
    assert (job.steps % joined, first_ends % (joined * STEP_NS)) == (0, 0)


def test_hosts_send_one_record_of_a_topic_for_each_time_that_they_join():
    sent = Counter()

    class CountingPublisher:
        def produce(self, topic, key, value, time_ns):
            sent[topic] += 1

    job = replace(planned(4096), steps=2 * joined_steps(4096))
    Hosts(CountingPublisher()).publish(rank_batches(job, [Topic.STEP]))
    assert sent == {Topic.STEP: 2 * 4096 // RANKS_PER_HOST}
