"""A repetition is a duplicate only with equal content: nobody erases a batch by publishing its sequence first."""

import pytest

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.sinks.ranges.duplicates import Duplicates, StoredBatches
from drumline.sinks.ranges.offset_ranges import Intervals
from drumline.sinks.ranges.reading import content_hash

STORED, EMPTY, DUPLICATE = Disposition.STORED, Disposition.EMPTY, Disposition.DUPLICATE
PLACE = ("p", "key", 7)


def entry(content, rows=10, sequence=7, run="run", sent_ns=1, dropped=0):
    record = Record(Topic.KERNEL, 0, 0, b"key", None, 0, [])
    source = {"job": "job", "run": run, "sent_ns": sent_ns, "dropped_before": dropped}
    batch = Batch(Topic.KERNEL, {"process_id": "p", "sequence": sequence, "rows": rows, **source})
    return RangeEntry(record, 1, batch, STORED if rows else EMPTY, rows, content=content)


def classify(entries, stored=None, history=()):
    """`stored`: hashes that the ledger has for the sequence of the entries, None for a batch without rows."""
    known = Duplicates({("p", "key"): Intervals(history)})
    known.contents = {place: StoredBatches() for place in known.repeated(entries)}
    for content in stored or ():
        known.contents[PLACE].add(content, "job", "run", 1)
    for e in entries:
        known.classify(e)
    return [e.disposition for e in entries], known.conflicts


@pytest.mark.parametrize(
    ("contents", "stored", "history", "dispositions", "conflicts"),
    [
        ([1, 1], None, [], [STORED, DUPLICATE], 0),  # published twice before it is stored
        ([1, 2, 1, 2], None, [], [STORED, STORED, DUPLICATE, DUPLICATE], 1),
        ([1], [1], [7], [DUPLICATE], 0),
        ([1], [2], [7], [STORED], 1),  # somebody else was first
        ([2, 1], [1], [7], [STORED, DUPLICATE], 1),
        ([1], [0], [7], [DUPLICATE], 0),  # stored before hashes were
        ([1, 1], [None], [7], [STORED, DUPLICATE], 1),  # an empty batch was first: both are stored
    ],
)
def test_only_a_repetition_with_equal_content_is_a_duplicate(contents, stored, history, dispositions, conflicts):
    assert classify([entry(content) for content in contents], stored, history) == (dispositions, conflicts)


def test_a_batch_that_the_agent_reports_as_lost_after_it_was_stored_is_a_duplicate():
    assert classify([entry(0, rows=0)], [1], [7]) == ([DUPLICATE], 0)
    assert classify([entry(1), entry(0, rows=0)]) == ([STORED, DUPLICATE], 0)


@pytest.mark.parametrize(
    ("first", "empty", "disposition"),
    [
        ({"run": "other"}, {}, EMPTY),  # whoever sends rows first erases no sign of life of the process
        ({"run": "other", "rows": 0}, {}, EMPTY),
        ({}, {"sent_ns": 2, "dropped": 5}, EMPTY),  # nor, with its job and run, the rows that it reports as lost
        ({"rows": 0}, {"sent_ns": 2, "dropped": 5}, EMPTY),
        ({}, {"dropped": 5}, DUPLICATE),  # the agent takes a stored batch for lost; nothing is
        ({}, {"sent_ns": 2}, DUPLICATE),  # so does it with several: they have the last one's time, and its drops
        ({"rows": 0, "dropped": 5}, {"dropped": 5}, DUPLICATE),  # published twice
    ],
)
def test_an_empty_batch_repeats_only_what_its_producer_sent(first, empty, disposition):
    dispositions, conflicts = classify([entry(1, **first), entry(0, rows=0, **empty)])
    assert (dispositions[1], conflicts) == (disposition, disposition is EMPTY)


def test_contents_are_loaded_only_for_repetitions():
    known = Duplicates({("p", "key"): Intervals([7])})
    entries = [entry(1, sequence=s) for s in (8, 9, 9)] + [entry(0, 0, 7)]
    assert known.repeated(entries) == {PLACE, ("p", "key", 9)}


def test_the_hash_is_of_the_content_and_not_of_the_schemas_number():
    assert content_hash(b"\0\0\0\0\x02body") == content_hash(b"\0\0\0\1\x07body") != content_hash(b"\0\0\0\0\x02bodY")
    assert content_hash(b"") != 0
