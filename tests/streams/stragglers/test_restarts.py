"""Verdicts of a job that restarts under one run name: those of each attempt, none replaced or mixed."""

import pytest
from support.restarted_job import SECOND, Start, restarted
from support.straggler_simulator import MS

from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.offline import results
from drumline.streams.stragglers.stage import JobStage

T = 1_700_000_000 * SECOND
CONFIG = StragglerConfig(window_steps=20)


def evaluated(stream):
    """Return what two stages publish of a stream: lateness, and verdicts."""
    stages = [
        ((Topic.COLLECTIVE,), CommunicatorStage({}, CONFIG)),
        ((Topic.LATENESS, Topic.STEP), JobStage({}, CONFIG)),
    ]
    raw = [(at, batch) for at, batch in stream if batch.topic != Topic.PROCESS]
    out = list(results(raw, stages, CONFIG.idle_ns))
    return [[batch for batch in out if batch.topic == topic] for topic in (Topic.LATENESS, Topic.STRAGGLER)]


def named(verdicts):
    """Return (attempt, first step) -> the ranks named, None where it was not evaluated; the last revision counts."""
    out = {}
    for batch in verdicts:
        head, columns = batch.envelope, batch.columns
        late = [r for r, s in zip(columns["rank"].tolist(), columns["severity"].tolist(), strict=True) if r >= 0 < s]
        known = columns["severity"][0] >= 0 or late
        out[head["attempt_start_ns"], head["first_step"]] = late if known else None
    return out


@pytest.mark.parametrize("is_stated", [True, False])
@pytest.mark.parametrize("first_step", [0, 30, 60])
def test_each_attempt_has_its_verdicts_wherever_its_steps_begin(first_step, is_stated):
    first = Start(T, steps=60, late=1, is_stated=is_stated)
    second = Start(first.end_ns + 5 * SECOND, steps=60, first_step=first_step, late=3, is_stated=is_stated)
    lateness, verdicts = evaluated(restarted("job", "100", (first, second)))
    by_attempt = {}
    for (attempt, step), ranks in named(verdicts).items():
        by_attempt.setdefault(attempt, {})[step] = ranks
    assert len(by_attempt) == 2
    (begin, of_first), (again, of_second) = sorted(by_attempt.items())
    assert of_first == {0: [], 20: [1], 40: [1]}, "one window alone may be chance"
    whole = sorted(step for step in of_second if step >= first_step and step + 20 <= first_step + 60)
    assert len(whole) >= 2
    assert all(of_second[step] == [3] for step in whole[1:])
    if is_stated:
        assert (begin, again) == (first.begin_ns, second.begin_ns)
    keys = [
        (b.envelope["communicator"], b.envelope["attempt_start_ns"], step, rank)
        for b in lateness
        for step, rank in zip(b.columns["step"].tolist(), b.columns["rank"].tolist(), strict=True)
    ]
    assert len(set(keys)) == 2 * 60 * 4


def test_sequences_of_attempts_are_those_of_different_sources():
    first = Start(T, steps=60, late=1)
    for batches in evaluated(restarted("job", "100", (first, Start(first.end_ns, steps=60)))):
        of_source = {}
        for batch in batches:
            of_source.setdefault(batch.envelope["process_id"], []).append(batch.envelope["sequence"])
        assert len(of_source) == 2
        assert all(sorted(set(numbers)) == list(range(len(set(numbers)))) for numbers in of_source.values())


def test_ranks_that_are_gone_are_not_missed_and_those_that_come_back_are_compared():
    four = Start(T, steps=40, late=1)
    two = Start(four.end_ns + SECOND, ranks=2, steps=40, first_step=40, late=0)
    again = Start(two.end_ns + SECOND, steps=40, first_step=60, late=2)
    _, verdicts = evaluated(restarted("job", "r", (four, two, again)))
    seen = {(b.envelope["attempt_start_ns"], b.envelope["ranks_seen"], b.envelope["world_size"]) for b in verdicts}
    assert seen == {(four.begin_ns, 4, 4), (two.begin_ns, 2, 2), (again.begin_ns, 4, 4)}
    assert named(verdicts) == {
        (four.begin_ns, 0): [], (four.begin_ns, 20): [1], (two.begin_ns, 40): [], (two.begin_ns, 60): [0],
        (again.begin_ns, 60): [], (again.begin_ns, 80): [2],
    }  # fmt: skip


def test_late_rows_of_an_attempt_belong_to_it():
    first = Start(T, steps=40, late=1)
    second = Start(first.end_ns + SECOND, steps=40, late=2)
    stream = restarted("job", "r", (first, second))
    late_ns = [at for at, _ in stream if at < second.begin_ns][-20]
    delayed = [(at + 3 * SECOND * (late_ns <= at < second.begin_ns), batch) for at, batch in stream]
    assert delayed != stream
    _, verdicts = evaluated(sorted(delayed, key=lambda item: item[0]))
    assert named(verdicts) == named(evaluated(restarted("job", "r", (first, second)))[1])


def test_an_attempt_that_was_lost_in_the_middle_of_a_window_publishes_no_stall():
    first = Start(T, steps=30, lost=(2,))
    second = Start(first.end_ns + SECOND, steps=1_000)
    _, verdicts = evaluated(restarted("job", "r", (first, second)))
    details = {d for b in verdicts for d in b.envelope["details"] if b.envelope["attempt_start_ns"] == first.begin_ns}
    assert details.isdisjoint({"stalled", "silent"})
    assert second.end_ns - second.begin_ns > 60_000 * MS
