"""Slow collectives of a job whose processes wait for a CPU: what has no place may be no slow link."""

from __future__ import annotations

import pytest
from support.link_windows import JOB, verdict_windows
from support.network_world import Network, job
from support.process_samples import host_samples
from support.straggler_simulator import MS

from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import SUSPECT

STEPS, SLOW, RANKS = 300, (100, 239), 4
ONE_WAY = {("node-1", "node-2"): 2.0}
#: Window in the middle of the slow steps.
WINDOW = 160


def with_samples(stream, queued_ms, late_ns=0):
    """Return the job with samples of its processes. `queued_ms`: of each rank, in the run queue each second."""
    first, last = min(at for at, _ in stream), max(at for at, _ in stream)
    seconds = range((first - 10**18) // 10**9, (last - 10**18) // 10**9 + 1)
    samples = [
        host_samples(rank, second, most_wait_ns=queued * MS)
        for second in seconds
        for rank, queued in enumerate(queued_ms)
    ]
    return sorted([*stream, *((at + late_ns, batch) for at, batch in samples)], key=lambda item: item[0])


def unlocated(network):
    """Return a job whose transfers nobody knows: collectives alone are longer than they were."""
    return [item for item in job(network, STEPS) if item[1].topic != Topic.TRANSFER]


def row(stream):
    return next(row for row in verdict_windows(stream)[WINDOW] if row.rank == JOB)


@pytest.mark.parametrize("late_ns", [0, 3 * 10**9])
def test_slow_collectives_of_processes_that_wait_for_a_cpu_are_no_slow_link(late_ns):
    of = row(with_samples(unlocated(Network(RANKS, slow=ONE_WAY, slow_steps=SLOW)), [400] * RANKS, late_ns))
    assert (of.cause, of.detail, of.severity) == ("changed_job", "cpu_contention", SUSPECT)
    assert of.evidence["cpu_wait_share"] == pytest.approx(0.4, abs=0.01)
    assert of.evidence["ratio"] > 1.3, "what became slower is stated all the same"


@pytest.mark.parametrize("queued_ms", [[0] * RANKS, [5] * RANKS, [900, 0, 0, 0], [900, -1, -1, -1]])
def test_a_wait_that_is_short_or_of_one_rank_alone_explains_no_slow_collective(queued_ms):
    of = row(with_samples(unlocated(Network(RANKS, slow=ONE_WAY, slow_steps=SLOW)), queued_ms))
    assert (of.cause, of.detail) == ("slow_link", "above_own_history")


@pytest.mark.parametrize(("queued_ms", "cause"), [(220, "changed_job"), (150, "slow_link")])
def test_of_a_job_that_loses_most_of_its_time_a_fifth_of_waiting_explains_it(queued_ms, cause):
    of = row(
        with_samples(unlocated(Network(RANKS, slow={("node-1", "node-2"): 12.0}, slow_steps=SLOW)), [queued_ms] * 4)
    )
    assert of.cause == cause


def test_a_slow_flow_is_named_on_hosts_that_lack_cpu_too():
    of = row(with_samples(job(Network(RANKS, slow=ONE_WAY, slow_steps=SLOW), STEPS), [900] * RANKS))
    assert (of.cause, of.detail) == ("slow_link", "one_flow")


def test_flows_that_have_nothing_in_common_are_no_slow_link_where_hosts_lack_cpu():
    slow = {("node-1", "node-2"): 2.0, ("node-5", "node-6"): 2.0}
    stream = job(Network(8, slow=slow, slow_steps=SLOW), STEPS)
    assert row(stream).detail == "several_flows"
    of = row(with_samples(stream, [400] * 8))
    assert (of.cause, of.detail, of.evidence["slow_flows"]) == ("changed_job", "cpu_contention", 2)
