"""Jobs whose steps take a minute: the first verdict comes after three of them, and a late rank has its name soon."""

from __future__ import annotations

import pytest
from support.straggler_simulator import Fault, batches, ddp, simulate
from support.tables import apply_batch

from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.stragglers.stage import JobStage

CONFIG = StragglerConfig()
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
LATE, FIRST = 1, 12


def slow_job(steps, *faults, step_ns=MINUTE, seed=0):
    recording = simulate(ddp(4), steps, faults, step_ns=step_ns, noise=0.01, seed=seed)
    return batches(recording, flush=1)


class Worker:
    """Runs both stages on the clock of the batches, with a tick every second."""

    def __init__(self):
        self.stores = {}, {}
        self.offset, self.now, self.published = 0, None, []
        self.restart()

    def restart(self):
        self.communicators, self.jobs = CommunicatorStage(self.stores[0], CONFIG), JobStage(self.stores[1], CONFIG)

    def read(self, stream, restarts=()):
        for time_ns, batch in stream:
            self.now = self.now or time_ns
            while self.now + SECOND < time_ns:
                self.tick()
            self.now = time_ns
            self.offset += 1
            if batch.columns["step"][0] in restarts and batch.envelope["rank"] == 0:
                self.restart()
            if batch.topic == "gpu.step.v1":
                self._published(apply_batch(self.jobs, batch, self.offset, self.now))
            else:
                self._late(apply_batch(self.communicators, batch, self.offset, self.now))
        for _ in range(10):
            self.tick()

    def tick(self):
        self.now += SECOND
        self._late(self.communicators.on_tick(self.now, True))
        self._published(self.jobs.on_tick(self.now, True))

    def _late(self, late):
        for batch in late:
            self.communicators.mark_sent(batch)
            self.offset += 1
            self._published(apply_batch(self.jobs, batch, self.offset, self.now))

    def _published(self, verdicts):
        for batch in verdicts:
            self.jobs.mark_sent(batch)
            self.published.append((self.now, batch))

    @property
    def lengths(self):
        spans = [(batch.envelope["first_step"], batch.envelope["last_step"]) for _, batch in self.published]
        return {last - first + 1 for first, last in spans}

    def naming(self):
        """(last step, ranks) of the last revision of each window that names a rank."""
        last = {int(batch.envelope["first_step"]): batch for _, batch in self.published}
        out = []
        for batch in (last[first] for first in sorted(last)):
            rank, severity = batch.columns["rank"], batch.columns["severity"]
            named = rank[(severity > OK) & (rank >= 0)].tolist()
            out += [(int(batch.envelope["last_step"]), named)] if named else []
        return out


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["idle", "compute"])
def test_a_rank_late_by_a_quarter_in_steps_of_a_minute_is_named_within_four_steps(kind, seed):
    worker = Worker()
    worker.read(slow_job(20, Fault(LATE, kind, MINUTE // 4, first=FIRST), seed=seed))
    named = worker.naming()
    assert named[0][0] < FIRST + 4
    assert {tuple(ranks) for _, ranks in named} == {(LATE,)}
    assert named[-1][0] == 19  # while it lasts


def test_the_first_verdict_of_steps_of_a_minute_comes_after_three_of_them():
    worker, stream = Worker(), slow_job(6)
    worker.read(stream)
    first_ns, _ = worker.published[0]
    assert first_ns <= stream[0][0] + 2.2 * MINUTE
    assert worker.lengths == {1}


@pytest.mark.parametrize("restarts", [(2,), (13,), (5, 14, 17)])
def test_a_restart_keeps_the_length_of_windows_and_all_verdicts(restarts):
    stream = slow_job(20, Fault(LATE, "idle", MINUTE // 4, first=FIRST))
    expected, restarted = Worker(), Worker()
    expected.read(stream)
    restarted.read(stream, restarts)
    assert restarted.naming() == expected.naming()
    assert restarted.lengths == {1}


def test_no_window_is_evaluated_before_all_of_its_ranks_and_communicators_have_it():
    """Between two steps of a minute a communicator sends nothing for longer than an idle one."""
    worker = Worker()
    worker.read(slow_job(12))
    assert {batch.envelope["revision"] for _, batch in worker.published} == {0}
    assert {batch.envelope["steps_used"] for _, batch in worker.published} == {1}
