"""Recognition of the stored end of a log, and the names of the logs that follow a lost one."""

import random

import pytest

from drumline.schemas.topics import Topic
from drumline.sinks.errors import TopicReplaced
from drumline.sinks.ranges.intent import Intent, write_done, write_intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.resume import follow_ledger, resume_from
from drumline.sinks.ranges.stored_tail import (
    StoredTail,
    continued_at,
    expected_end,
    first_difference,
    kafka_topic_id,
    log_spans,
    losses,
    replaced,
)
from drumline.sinks.tables.tables import table


def assigned(offset, metadata):
    state = PartitionState(table(Topic.KERNEL), 2, "id", 0)
    resume_from(state, offset, metadata, accept_loss=False)
    return state


def test_kafka_must_still_have_the_last_record_of_the_ledger():
    state = assigned(40, write_done("id"))
    assert follow_ledger(state, StoredTail("id", 39, 1_000)) == 40
    assert expected_end(state) == 40
    assert not replaced(state, 38, 7)
    assert "the record at offset 39 was published 1970-01-01T00:00:02" in replaced(state, 39, 2_000)
    assert replaced(state, 39, 2_000), "the same once more, after an error"
    assert not replaced(state, 39, 1_000)


def test_the_ledger_may_be_ahead_of_the_commit():
    state = assigned(20, write_done("id"))
    assert follow_ledger(state, StoredTail("id", 39, 1_000)) == 40
    assert expected_end(state) == 40


def test_the_last_record_of_a_committed_intent_must_come_again():
    entries = Intent(OffsetRange("id", 2, 40, 49), 10, 100, published_ms=5_000)
    state = assigned(40, write_intent(entries))
    follow_ledger(state, StoredTail("id", 39, 1_000))
    assert expected_end(state) == 50
    assert replaced(state, 49, 6_000)
    assert not replaced(state, 49, 5_000)


def test_a_log_that_continued_after_an_accepted_loss_has_a_ledger_of_its_own():
    new = continued_at("id", 20)
    state = assigned(20, write_done(new))
    assert state.topic_id == new != "id"
    assert kafka_topic_id(new) == "id"
    assert follow_ledger(state, StoredTail("id", 39, 1_000)) == 0, "nothing of the new log is stored yet"
    assert expected_end(state) == 20
    assert follow_ledger(state, StoredTail(new, 24, 2_000)) == 25


def test_a_commit_that_kafka_lost_does_not_lead_back_to_the_lost_log():
    with pytest.raises(TopicReplaced):
        follow_ledger(assigned(40, write_done("id")), StoredTail(continued_at("id", 20), 24, 2_000))


def test_each_offset_belongs_to_the_log_that_wrote_it_last():
    """Against a model: every write has a number, a loss cuts the log."""
    dice = random.Random(1)
    for _ in range(200):
        name, log = "id", ["id"] * dice.randint(1, 12)
        for _ in range(dice.randint(0, 4)):
            first = dice.randint(0, len(log))
            name = continued_at(name, first)
            log = log[:first] + [name] * dice.randint(1, 12)
        low = dice.randrange(len(log))
        spans = log_spans(name, low, len(log) - 1)
        assert [span for span, first, last in spans for _ in range(first, last + 1)] == log[low:]
        assert losses(name) == name.count("~")


def test_the_first_difference_of_two_logs():
    for size in range(8):
        for first in range(size + 1):
            assert first_difference(3, 3 + size, lambda offset, first=first: offset < 3 + first) == 3 + first
