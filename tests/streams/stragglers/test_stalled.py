"""Jobs whose steps stop: evaluated up to their last step, published once, never taken for healthy; they may go on."""

from __future__ import annotations

import json

import pytest
from support.labs.stage_feed import seen
from support.straggler_simulator import MS, Fault, batches, ddp, simulate
from support.tables import apply_batch

from drumline.schemas.batch import Batch
from drumline.streams.core.thresholds import CRITICAL, INSUFFICIENT, StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import verdicts
from drumline.streams.stragglers.stage import JobStage

CONFIG = StragglerConfig(window_steps=12)
LATE, SECOND = 2, 1_000_000_000
STREAM = [batch for _, batch in batches(simulate(ddp(4), 48, (Fault(LATE, "idle", 40 * MS),)))]
HEALTHY = [batch for _, batch in batches(simulate(ddp(4), 48))]


class Worker:
    """Runs both stages without lag; `published`: all verdicts."""

    def __init__(self) -> None:
        self.store: dict[str, bytes] = {}
        self.communicators, self.jobs = CommunicatorStage({}, CONFIG), JobStage(self.store, CONFIG)
        self.now, self.offset, self.published = 10**18, 0, []

    def read(self, stream):
        for batch in stream:
            self.offset += 1
            if batch.topic == "gpu.step.v1":
                self._published(apply_batch(self.jobs, batch, self.offset, self.now))
            else:
                self._late(apply_batch(self.communicators, batch, self.offset, self.now))

    def wait(self, seconds, alive=(), interval=1):
        """`alive`: last batches of ranks that go on to publish batches without rows."""
        for _ in range(seconds // interval):
            self.now += interval * SECOND
            self.read(nothing(batch) for batch in alive)
            self._late(self.communicators.on_tick(self.now, True))
            self._published(self.jobs.on_tick(self.now, True))

    def restart(self):
        self.jobs = JobStage(self.store, CONFIG)

    def _late(self, batches):
        for batch in batches:
            self.communicators.mark_sent(batch)
            self.offset += 1
            self._published(apply_batch(self.jobs, batch, self.offset, self.now))

    def _published(self, batches):
        for batch in batches:
            self.jobs.mark_sent(batch)
            self.published.append(batch)

    def last(self, first):
        """rank -> (severity, state, detail) of the last revision of a window, None without one."""
        of = [batch for batch in self.published if batch.envelope["first_step"] == first]
        if not of:
            return None
        columns = (of[-1].columns["severity"], of[-1].strings("state", "states"), of[-1].strings("detail", "details"))
        return dict(zip(of[-1].columns["rank"].tolist(), zip(*(list(c) for c in columns), strict=True), strict=True))


def nothing(batch):
    columns = {name: values[:0] for name, values in batch.columns.items()}
    return Batch(batch.topic, {**batch.envelope, "rows": 0}, columns)


def until(step, stream=STREAM):
    return [batch for batch in stream if batch.columns["step"][-1] <= step]


def ends(step, stream=STREAM):
    """The last batch of each rank's steps up to one."""
    return list({b.envelope["rank"]: b for b in until(step, stream) if b.topic == "gpu.step.v1"}.values())


def test_a_hung_job_with_active_ranks_is_evaluated_up_to_its_last_step_and_reported_as_stalled():
    worker = Worker()
    worker.read(until(20))
    worker.wait(50, alive=ends(20))
    assert worker.last(0)[LATE][0] == CRITICAL
    assert worker.last(12) is None
    worker.wait(20, alive=ends(20))
    assert worker.last(12)[LATE][:2] == (CRITICAL, "critical")
    assert set(worker.last(24).values()) == {(INSUFFICIENT, "insufficient_data", "stalled")}
    evidence = worker.published[-1].strings("evidence_json", "evidence")
    assert [json.loads(text) for text in evidence] == [{"complete_step": 20}] * 5


def test_a_stall_is_published_once_and_not_again_by_a_restarted_worker():
    worker = Worker()
    worker.read(until(20))
    worker.wait(70, alive=ends(20))
    published = len(worker.published)
    worker.wait(200, alive=ends(20), interval=4)
    worker.restart()
    worker.wait(200, alive=ends(20), interval=4)
    assert len(worker.published) == published


@pytest.mark.parametrize("alive", [True, False])
def test_a_job_that_goes_on_ends_as_if_it_had_never_stopped(alive):
    worker = Worker()
    worker.read(until(20))
    worker.wait(120, alive=ends(20) if alive else ())
    worker.read([batch for batch in STREAM if batch.columns["step"][-1] > 20])
    worker.wait(30)
    times = (int(batch.columns["start_ns"].max()) for batch in STREAM)
    assert seen(worker.published) == seen(verdicts(((time, b) for time, b in zip(times, STREAM, strict=True)), CONFIG))
    revisions = [(batch.envelope["first_step"], batch.envelope["revision"]) for batch in worker.published]
    assert len(set(revisions)) == len(revisions)


def test_a_level_in_force_does_not_stand_when_no_rank_is_active():
    worker = Worker()
    worker.read(STREAM)
    worker.wait(50)
    assert (worker.last(36)[LATE][1], worker.last(48)) == ("critical", None)
    worker.wait(400, interval=4)
    assert set(worker.last(48).values()) == {(INSUFFICIENT, "insufficient_data", "silent")}
    assert len([batch for batch in worker.published if batch.envelope["first_step"] == 48]) == 1


def test_a_healthy_job_that_is_done_has_nothing_to_take_back():
    worker = Worker()
    worker.read(HEALTHY)
    worker.wait(400, interval=4)
    assert worker.last(36) is not None
    assert worker.last(48) is None


def test_a_job_that_hung_and_was_then_killed_is_silent():
    worker = Worker()
    worker.read(until(20))
    worker.wait(70, alive=ends(20))
    worker.wait(20)
    assert worker.last(24)[LATE][2] == "silent"


def test_long_steps_have_not_stopped():
    slow = [batch for _, batch in batches(simulate(ddp(4), 48), scale=500)]  # 30 s a step
    worker = Worker()
    worker.read(until(20, slow))
    worker.wait(140, alive=ends(20, slow))
    assert worker.last(20) is not None
    assert worker.last(21) is None
    worker.wait(30, alive=ends(20, slow))
    assert worker.last(21)[LATE][2] == "stalled"


def test_a_rank_that_publishes_but_never_steps_delays_no_verdict():
    job = [batch for _, batch in batches(simulate(ddp(8), 48, (Fault(LATE, "idle", 40 * MS),)))]
    mute = nothing(next(batch for batch in job if batch.envelope["rank"] == 7 and batch.topic == "gpu.step.v1"))
    mute.envelope["complete_step"] = -1
    worker = Worker()
    for first in range(0, 48, 12):
        worker.read(b for b in job if b.envelope["rank"] != 7 and first <= b.envelope["complete_step"] < first + 12)
        worker.wait(20, alive=[mute])
    assert worker.last(24)[LATE][0] == CRITICAL


def test_shares_of_a_window_that_came_half_are_of_the_steps_that_came():
    worker = Worker()
    worker.read(until(20))
    worker.wait(70, alive=ends(20))
    published = [batch for batch in worker.published if batch.envelope["first_step"] in (0, 12)]
    shares = [float(batch.columns["lost_share"][batch.columns["rank"] == LATE][0]) for batch in published]
    assert shares[0] == pytest.approx(shares[-1], abs=0.01)
    assert published[-1].envelope["steps_used"] == 9


def test_a_late_rank_that_leaves_a_running_job_does_not_keep_its_level_unreported():
    """Seven of eight are a quorum, so the others are evaluated."""
    job = [batch for _, batch in batches(simulate(ddp(8), 72, (Fault(LATE, "idle", 40 * MS, last=23),)))]
    worker = Worker()
    kept = [b for b in job if b.envelope["rank"] != LATE or not 24 <= b.columns["step"][0] < 48]
    for first in range(0, 72, 12):
        worker.read(b for b in kept if first <= b.envelope["complete_step"] < first + 12)
        worker.wait(8)
    assert worker.last(12)[LATE][1] == "critical"
    assert worker.last(24)[LATE] == worker.last(36)[LATE] == (INSUFFICIENT, "insufficient_data", "silent")
    assert {row[1] for rank, row in worker.last(36).items() if rank != LATE} == {"ok"}
    assert worker.last(60)[LATE][1] == "critical"  # until it was well in three windows
    assert list(worker.last(24)) == [-1, *range(8)]


def test_ranks_of_a_job_whose_records_are_joined_may_be_silent_for_longer():
    """As agents send the records of 4,096 ranks every 2 s, 6 s without one are no silence."""
    worker = Worker()
    worker.read(Batch(b.topic, {**b.envelope, "world_size": 4_096}, b.columns) for b in until(20))
    worker.wait(6)
    [job] = worker.jobs.states.values()
    members = [member for state in worker.communicators.states.values() for member in state.members.values()]
    assert not any(source.silent for source in [*job.sources, *members])
    assert not job.settled
    worker.wait(10)
    assert all(source.silent for source in [*job.sources, *members])
    assert job.settled
