"""The stages as processors: replays, order, duplicates, kills, clocks, silence. The last verdicts must not change."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.labs.attribution import evaluated
from support.labs.light import light, light_batches
from support.labs.sink import any_batch
from support.labs.stage_feed import seen
from support.straggler_simulator import MS, Fault, batches, ddp, mesh, overlapped, simulate
from support.tables import apply_batch

from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import INSUFFICIENT, StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results, verdicts
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.worker.ticks import OtherWorkers

CONFIG = StragglerConfig(window_steps=12)
SHAPE = mesh(2, 2)
STREAM = batches(simulate(SHAPE, 60, (Fault(1, "idle", 25 * MS, first=12, last=35), Fault(2, "copy", 9 * MS, 2))))
SECOND = 1_000_000_000
JOB_TOPICS = ("gpu.lateness.v1", "gpu.step.v1")


def published(stream, config=CONFIG):
    """Everything a consumer sees of the last revisions but times and revisions."""
    return seen(verdicts(stream, config))


RUN = "3:job|run"


# Each process collects this file, and one runs it: what costs is made when it is first needed.
@cache
def expected():
    return published(STREAM)


@cache
def light_stream():
    return light_batches(light(overlapped(ddp(4), 48, (Fault(1, "idle", 25 * MS, period=2, last=35),), seed=1)))


@cache
def light_expected():
    return published(light_stream())


EITHER = pytest.mark.parametrize(
    ("stream_of", "expected_of"), [(lambda: STREAM, expected), (light_stream, light_expected)], ids=["deep", "light"]
)


def seeds(fast, count):
    """So many, of which the first ones belong to the fast tests."""
    return [*range(fast), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(fast, count))]


def test_the_reference_names_both_ranks():
    result = evaluated(STREAM, CONFIG)
    assert [sorted(r for r, row in rows.items() if row[0] >= 2) for rows in result.values()] == [
        *([2], [1, 2], [1, 2], [2], [2])
    ]


@pytest.mark.parametrize("error_ns", [-500 * MS, 500 * MS])
def test_a_hosts_clock_may_be_wrong(error_ns):
    recording = simulate(SHAPE, 60, (Fault(1, "idle", 25 * MS, first=12, last=35), Fault(2, "copy", 9 * MS, 2)))
    assert published(batches(recording, shift_ns={2: error_ns, 3: error_ns})) == expected()


@EITHER
@pytest.mark.parametrize("seed", seeds(2, 5))
def test_batches_of_different_ranks_may_come_in_any_order(seed, stream_of, expected_of):
    jitter = random.Random(seed)
    stream = stream_of()
    late = {(b.envelope["rank"], b.topic): jitter.uniform(0, 3 * SECOND) for _, b in stream}
    shuffled = sorted(stream, key=lambda item: item[0] + late[item[1].envelope["rank"], item[1].topic])
    assert published(shuffled) == expected_of()


@EITHER
def test_batches_may_come_twice(stream_of, expected_of):
    again = random.Random(1)
    twice = [item for item in stream_of() for _ in range(1 + (again.random() < 0.3))]
    assert published(twice) == expected_of()


@pytest.mark.parametrize("rate_s", [0.1, 2])
def test_a_worker_that_catches_up_may_read_all_steps_before_any_collective(rate_s):
    """For longer than a run waits for missing ranks, and over more steps than late rows are kept for. Nothing is
    acknowledged, so all batches are sent again and again; superseded ones are not."""
    stream = batches(simulate(SHAPE, 120, (Fault(1, "idle", 25 * MS, first=12, last=35),)))
    communicators = (("gpu.collective.v1",), CommunicatorStage({}, CONFIG))
    late = list(results(stream, [communicators], CONFIG.idle_ns))
    steps = [batch for _, batch in stream if batch.topic == "gpu.step.v1"]
    jobs, now, result = JobStage({}, CONFIG), SECOND, []
    for offset, batch in enumerate([*steps, *late], 1):
        now += int(rate_s * SECOND)
        result += [*apply_batch(jobs, batch, offset, now), *jobs.on_tick(now, False)]
    for _ in range(3):
        now += 2 * CONFIG.idle_ns
        result += jobs.on_tick(now, True)
    assert seen(result) == published(stream)


def test_a_job_that_comes_back_from_a_silence_may_be_read_rank_by_rank_and_topic_by_topic():
    """As after an outage of Kafka, when agents publish what has piled up."""
    stream = batches(simulate(SHAPE, 200, (Fault(1, "idle", 25 * MS, first=12, last=35),)))
    before = [batch for _, batch in stream if batch.columns["step"][0] < 24]
    piled = [batch for _, batch in stream if batch.columns["step"][0] >= 24]
    rest = sorted(piled, key=lambda batch: (batch.topic != "gpu.step.v1", batch.envelope["rank"]))
    communicators, jobs = CommunicatorStage({}, CONFIG), JobStage({}, CONFIG)
    result, now, late = [], SECOND, 0

    def read(queue, now):
        nonlocal late
        for offset, batch in queue:
            if batch.topic == "gpu.step.v1":
                result.extend(apply_batch(jobs, batch, offset, now))
            else:
                lateness(apply_batch(communicators, batch, offset, now), now)

    def lateness(batches, now):
        nonlocal late
        for batch in batches:
            communicators.mark_sent(batch)
            late += 1
            result.extend(apply_batch(jobs, batch, late, now))

    read(enumerate(before), now)
    for caught_up, queue in ((True, ()), (True, ()), (False, enumerate(rest, len(before))), (True, ()), (True, ())):
        now += 2 * CONFIG.idle_ns
        read(queue, now)
        for _ in range(2):
            lateness(communicators.on_tick(now, caught_up), now)
            result.extend(jobs.on_tick(now, caught_up))
            now += SECOND
    assert seen(result) == published(stream)


@pytest.mark.parametrize(
    ("steps", "most", "history"),
    [
        (200, 4096, 64),
        pytest.param(900, 4096, 64, marks=pytest.mark.long),
        (200, 96, 64),
        pytest.param(400, 96, 64, marks=pytest.mark.long),
        pytest.param(400, 4096, 24, marks=pytest.mark.long),
    ],
)
def test_a_window_evaluated_before_a_ranks_first_batch_is_evaluated_again_however_fast_it_is_overtaken(
    steps, most, history
):
    """As where spools of a job that is over are published: many steps of each rank at once, hundreds between ticks. By
    more windows than verdicts are kept of, too, or rows."""
    config = StragglerConfig(window_steps=12, max_steps=most, history_windows=history)
    stream = batches(simulate(SHAPE, steps, (Fault(1, "idle", 25 * MS, first=12, last=35),)))
    begin = [batch for _, batch in stream if batch.columns["step"][0] < 24]
    begin.sort(key=lambda batch: (batch.topic != "gpu.step.v1", batch.envelope["rank"]))
    rest = [batch for _, batch in stream if batch.columns["step"][0] >= 24]
    kafka, now = Kafka([(0, batch) for batch in (*begin, *rest)], config), SECOND
    for offset in range(len(kafka.stream)):
        now += CONFIG.settle_ns // 5 if offset < len(begin) else 0
        kafka.read(offset, offset + 1, now)
    assert kafka.verdicts[0].envelope["first_step"] == 0, "too early"
    for _ in range(3):
        now += 2 * CONFIG.idle_ns
        kafka.tick(now)
    assert kafka.last() == published(stream, config)
    revisions = [(batch.envelope["first_step"], batch.envelope["revision"]) for batch in kafka.verdicts]
    assert sorted(set(revisions)) == sorted(revisions)
    assert len(kafka.jobs.states[RUN].published) <= CONFIG.history_windows + CONFIG.baseline_windows + 9


def test_what_is_not_evaluated_again_is_kept_no_longer_than_the_bound():
    config = StragglerConfig(window_steps=4, retention_steps=16, history_windows=8, max_steps=80)
    kafka, kept = Kafka(batches(simulate(ddp(4), 400, noise=0.0)), config), 0
    for offset, (time_ns, _) in enumerate(kafka.stream):
        kafka.read(offset, offset + 1, time_ns)
        if RUN in kafka.jobs.states and (state := kafka.jobs.states[RUN]).published:
            state.dirty.add(min(state.published))  # and no tick comes
            kept = max(kept, len(state.blocks))
    assert 80 // 4 < kept <= 80 // 4 + 4


def test_runs_never_mix():
    other = batches(simulate(SHAPE, 60, (Fault(0, "compute", 30 * MS),)), run="other")
    both = sorted([*STREAM, *other], key=lambda item: item[0])
    result = published(both)
    assert {where: value for where, value in result.items() if where[1] == "run"} == expected()
    assert len(result) == 2 * len(expected())


class Kafka:
    """Both stages over stores that survive, with a log that can be read again from anywhere."""

    def __init__(self, stream=STREAM, config=CONFIG) -> None:
        self.stream, self.config = stream, config
        self.lateness: list[Batch] = []
        self.verdicts: list[Batch] = []
        self.stores: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
        self.start()

    def start(self) -> None:
        self.communicators = CommunicatorStage(self.stores[0], self.config)
        self.jobs = JobStage(self.stores[1], self.config)

    def read(self, first: int, end: int, now_ns: int) -> None:
        for offset, (_, batch) in enumerate(self.stream[first:end], first):
            if batch.topic == "gpu.step.v1":
                self.send_verdicts(apply_batch(self.jobs, batch, offset, now_ns))
            else:
                self.send_lateness(apply_batch(self.communicators, batch, offset, now_ns), now_ns)

    def tick(self, now_ns: int) -> None:
        self.send_lateness(self.communicators.on_tick(now_ns, True), now_ns)
        self.send_verdicts(self.jobs.on_tick(now_ns, True))

    def send_lateness(self, result: list[Batch], now_ns: int) -> None:
        for batch in result:
            self.lateness.append(batch)
            self.communicators.mark_sent(batch)
            self.send_verdicts(apply_batch(self.jobs, batch, len(self.lateness), now_ns))

    def send_verdicts(self, result: list[Batch]) -> None:
        for batch in result:
            self.verdicts.append(batch)
            self.jobs.mark_sent(batch)

    def last(self):
        return seen(self.verdicts)


@EITHER
@pytest.mark.parametrize("seed", seeds(2, 4))
def test_a_kill_and_a_replay_of_what_was_not_committed_change_nothing(seed, stream_of, expected_of):
    kill = random.Random(seed)
    stream = stream_of()
    kafka, at, now = Kafka(stream), 0, 10**18
    while at < len(stream):
        end = min(len(stream), at + kill.randrange(1, 40))
        kafka.read(at, end, now)
        now += SECOND
        kafka.tick(now)
        if kill.random() < 0.4:
            kafka.start()
            end = max(0, end - kill.randrange(0, 30))
        at = end
    for _ in range(2):
        now += 6 * SECOND
        kafka.tick(now)
    assert kafka.last() == expected_of()
    revisions = [(b.envelope["first_step"], b.envelope["revision"]) for b in kafka.verdicts]
    assert len(set(revisions)) == len(revisions)


class Killed(BaseException):
    pass


class TornStore(dict[str, bytes]):
    """The worker may die before any change, most of all between the deletions that belong together."""

    def __init__(self, chance):
        super().__init__()
        self.chance, self.deadly = chance, True

    def _perhaps(self, share):
        if self.deadly and self.chance.random() < share:
            raise Killed

    def __setitem__(self, name, value):
        self._perhaps(0.002)
        super().__setitem__(name, value)

    def __delitem__(self, name):
        self._perhaps(0.05)
        super().__delitem__(name)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_kill_between_two_changes_of_the_state_changes_nothing(seed):
    """Of old steps too, whose state is deleted piece by piece. What was not acknowledged has not arrived."""
    chance, config = random.Random(seed), StragglerConfig(window_steps=4, retention_steps=24)
    stores, kills = (TornStore(chance), TornStore(chance)), 0
    lateness: list[Batch] = []
    result: list[Batch] = []
    at, read = where = 0, 0
    while at < len(STREAM) or read < len(lateness):
        flying: list[tuple[Batch, int, int]] = []
        try:
            communicators, jobs = CommunicatorStage(stores[0], config), JobStage(stores[1], config)
            while at < len(STREAM) or read < len(lateness) or flying:
                where, now = (at, read), 10**18 + at * SECOND // 50
                if at < len(STREAM) and (read == len(lateness) or chance.random() < 0.7):
                    at += 1
                    of = jobs if STREAM[where[0]][1].topic == "gpu.step.v1" else communicators
                    out = apply_batch(of, STREAM[where[0]][1], where[0], now)
                elif read < len(lateness):
                    read += 1
                    out = apply_batch(jobs, lateness[where[1]], where[1], now)
                else:
                    out = []
                if chance.random() < 0.1:
                    out = [*out, *communicators.on_tick(now, False), *jobs.on_tick(now, False)]
                flying += [(batch, *where) for batch in out]
                while flying and chance.random() < 0.2:
                    batch = flying.pop(0)[0]
                    of_job = batch.topic == "gpu.straggler.v1"
                    (result if of_job else lateness).append(batch)
                    (jobs if of_job else communicators).mark_sent(batch)
        except Killed:
            kills += 1
            at = max(0, min([where[0], *(seen_at for _, seen_at, _ in flying)]) - chance.randrange(20))
            read = max(0, min([where[1], *(seen_read for _, _, seen_read in flying)]) - chance.randrange(5))
    for store in stores:
        store.deadly = False
    communicators, jobs = CommunicatorStage(stores[0], config), JobStage(stores[1], config)
    for second in (1, 7, 14):
        now = 10**18 + len(STREAM) * SECOND // 50 + second * SECOND
        lateness += communicators.on_tick(now, True)
        result += [v for i, b in enumerate(lateness[read:], read) for v in apply_batch(jobs, b, i, now)]
        read = len(lateness)
        result += jobs.on_tick(now, True)
    assert kills
    assert seen(result) == published(STREAM, config)


def test_what_was_not_acknowledged_is_returned_again():
    stage = CommunicatorStage({}, CONFIG)
    out = [b for o, (t, x) in enumerate(STREAM) if x.topic == "gpu.collective.v1" for b in apply_batch(stage, x, o, t)]
    now = STREAM[-1][0]
    assert out
    assert stage.on_tick(now + CONFIG.resend_ns + 1, False)


def test_a_silent_rank_does_not_hold_the_verdict_up_nor_count_as_healthy():
    mute = [item for item in STREAM if not (item[1].envelope["rank"] == 3 and item[1].columns["step"][0] >= 24)]
    result = evaluated(mute, CONFIG)
    assert [rows[1][0] != INSUFFICIENT for rows in result.values()] == [True, True, False, False, False]
    assert all(severity == INSUFFICIENT for rows in list(result.values())[2:] for severity, _, _ in rows.values())


def test_a_rank_that_joins_late_is_missing_until_then():
    late = [item for item in STREAM if not (item[1].envelope["rank"] == 3 and item[1].columns["step"][-1] < 24)]
    result = evaluated(late, CONFIG)
    assert [rows[1][0] != INSUFFICIENT for rows in result.values()] == [False, False, True, True, True]


def test_a_job_that_goes_on_with_fewer_ranks_is_evaluated_by_those():
    """The survivors meet on new communicators; their world size is the smaller one."""
    before = [item for item in STREAM if item[1].columns["step"][0] < 24]
    job = batches(simulate(ddp(3), 60, (Fault(1, "idle", 25 * MS, first=24),)))
    after = [(t + SECOND, b) for t, b in job if b.columns["step"][0] >= 24]
    result = evaluated([*before, *after], CONFIG)
    assert [sorted(r for r, row in rows.items() if row[0] >= 2) for rows in result.values()] == [
        *([2], [1, 2], [1], [1], [1])
    ]


def test_lost_batches_name_no_rank_wrongly():
    for seed in range(6):
        lost = random.Random(seed)
        kept = [item for item in STREAM if lost.random() > 0.03]
        for first, rows in evaluated(kept, CONFIG).items():
            named = {rank for rank, row in rows.items() if row[0] >= 2}
            assert named <= ({1, 2} if 12 <= first < 36 else {2})


def test_memory_stays_bounded():
    config = StragglerConfig(window_steps=4, retention_steps=16, history_windows=8)
    stores: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
    stage, jobs, sizes = CommunicatorStage(stores[0], config), JobStage(stores[1], config), []
    for offset, (time_ns, batch) in enumerate(batches(simulate(ddp(4), 400, noise=0.0))):
        if batch.topic == "gpu.step.v1":
            result = apply_batch(jobs, batch, offset, time_ns)
        else:
            late = apply_batch(stage, batch, offset, time_ns)
            result = [v for b in late for v in apply_batch(jobs, b, offset, time_ns)]
            for b in late:
                stage.mark_sent(b)
        for b in result:
            jobs.mark_sent(b)
        sizes.append(sum(len(v) for store in stores for v in store.values()))
    assert max(sizes[len(sizes) // 2 :]) <= 1.1 * max(sizes[: len(sizes) // 2])


def test_every_batch_survives_the_codec():
    codec = Codec()
    stage = CommunicatorStage({}, CONFIG)
    late = [b for o, (t, x) in enumerate(STREAM) if x.topic == "gpu.collective.v1" for b in apply_batch(stage, x, o, t)]
    for batch in [*late, *verdicts(STREAM, CONFIG)]:
        back = codec.decode(batch.topic, codec.encode(batch))
        for name, column in batch.columns.items():
            np.testing.assert_array_equal(back.columns[name], column)


def beside_a_halted_worker(config, halt, paced):
    """Return the job stage's verdicts, and how many came while the worker of the communicators was halted.

    `halt`: begin and end, ns. `paced`: the job stage's time passes only while that worker runs.
    """
    communicators, job, peers = CommunicatorStage({}, config), JobStage({}, config), OtherWorkers()
    begin, tick, out, late, offset, ticks, during = STREAM[0][0], MS * 50, [], [], 0, 0, 0
    end = STREAM[-1][0] + 4 * config.idle_ns

    def read(stage, batch):
        nonlocal offset
        offset += 1
        for result in apply_batch(stage, batch, offset, now):
            settle(stage, result)

    def settle(stage, result):
        stage.mark_sent(result)
        if stage is communicators:
            read(job, result)
        else:
            out.append(result)

    stream = iter([*STREAM, (end + tick, None)])
    time_ns, batch = next(stream)
    for now in range(begin, end, tick):
        halted, before = halt[0] <= now - begin < halt[1], len(out)
        while time_ns <= now:
            if batch.topic == "gpu.collective.v1":
                late.append(batch)
            else:
                read(job, batch)
            time_ns, batch = next(stream)
        while late and not halted:
            read(communicators, late.pop(0))
        ticks += not halted
        peers.observe({1: ticks}, now)
        for stage in (job,) if halted else (communicators, job):
            known = peers.time(now) if paced and stage is job else now
            for result in stage.on_tick(known, True):
                settle(stage, result)
        during += halted * (len(out) - before)
    return out, during


def test_no_communicator_is_silent_while_the_worker_that_reads_it_is_halted():
    config = replace(CONFIG, idle_ns=SECOND)
    halt = 2 * SECOND, 5 * SECOND
    assert beside_a_halted_worker(config, halt, paced=False)[1]
    out, during = beside_a_halted_worker(config, halt, paced=True)
    assert not during
    assert seen(out) == published(STREAM, config)


@pytest.mark.parametrize(("world_size", "rests_s"), [(4, 0), (16_384, 4)])
def test_a_published_window_of_a_large_job_is_evaluated_again_once_in_the_time_that_its_samples_come(
    world_size, rests_s, monkeypatch
):
    """Each tick of it would take seconds; the last verdict is the same."""
    communicators, jobs = CommunicatorStage({}, CONFIG), JobStage({}, CONFIG)
    assert list(results(STREAM, [(("gpu.collective.v1",), communicators), (JOB_TOPICS, jobs)], CONFIG.idle_ns))
    [state] = jobs.states.values()
    state.world_size, state.settled = world_size, True
    now_ns = max(state.evaluated_ns.values())
    window = max(state.published)
    evaluated_at, evaluate = [], jobs._evaluate_window
    monkeypatch.setattr(jobs, "_evaluate_window", lambda *of: (evaluated_at.append(of[2]), evaluate(*of))[1])
    state.evaluated_ns[window] = now_ns
    for second in range(1, 8):
        state.dirty.add(window)  # a sample of it came
        jobs.on_tick(now_ns + second * SECOND, True)
    assert [(at - now_ns) // SECOND for at in evaluated_at] == ([4] if rests_s else [1, 2, 3, 4, 5, 6, 7])
    jobs.on_tick(now_ns + 8 * SECOND, True)
    assert not state.dirty


@pytest.mark.parametrize(("rank", "seconds", "is_read"), [(1, 0, True), (3, 0, True), (9, 0, False), (1, 30, False)])
def test_a_window_is_evaluated_again_only_for_samples_that_its_verdict_rests_on(rank, seconds, is_read):
    """Of a late rank and of its peers, in its steps: in a large job nearly all samples are of other ranks."""
    communicators, jobs = CommunicatorStage({}, CONFIG), JobStage({}, CONFIG)
    assert list(results(STREAM, [(("gpu.collective.v1",), communicators), (JOB_TOPICS, jobs)], CONFIG.idle_ns))
    [state] = jobs.states.values()
    window = max(state.watched)
    sample = any_batch(Topic.HOST, 1, "process", 0, seed=rank)
    sample.columns["time_ns"] = np.array([state.watched[window].end_ns + seconds * SECOND])
    sample.columns["interval_ns"] = np.array([SECOND])
    assert not state.dirty
    apply_batch(jobs, sample, 1, SECOND)
    assert (window in state.dirty) == is_read
