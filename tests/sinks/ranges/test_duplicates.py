"""A repetition is a duplicate only with equal content: nobody erases a batch by publishing its sequence first."""

import pytest

from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.duplicates import Duplicates
from drumline.sinks.ranges.offset_ranges import Intervals
from drumline.sinks.ranges.record import Disposition, RangeEntry, Record, content_hash

STORED, EMPTY, DUPLICATE = Disposition.STORED, Disposition.EMPTY, Disposition.DUPLICATE
PLACE = ("p", "key", 7)


def entry(content, rows=10, sequence=7):
    record = Record(Topic.KERNEL, 0, 0, b"key", None, 0, [])
    batch = Batch(Topic.KERNEL, {"process_id": "p", "sequence": sequence, "rows": rows})
    return RangeEntry(record, 1, batch, STORED if rows else EMPTY, rows, content=content)


def classify(entries, stored=None, history=()):
    """`stored`: hashes that the ledger has for the sequence of the entries."""
    known = Duplicates({("p", "key"): Intervals(history)})
    known.contents = {place: set(stored or ()) for place in known.repeated(entries)}
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
        ([1, 1], [], [7], [STORED, DUPLICATE], 0),  # an empty batch is stored, or a dead letter: no rows
    ],
)
def test_only_a_repetition_with_equal_content_is_a_duplicate(contents, stored, history, dispositions, conflicts):
    assert classify([entry(content) for content in contents], stored, history) == (dispositions, conflicts)


def test_a_batch_that_the_agent_reports_as_lost_after_it_was_stored_is_a_duplicate():
    assert classify([entry(0, rows=0)], [1], [7]) == ([DUPLICATE], 0)
    assert classify([entry(1), entry(0, rows=0)]) == ([STORED, DUPLICATE], 0)


def test_contents_are_loaded_only_for_repetitions():
    known = Duplicates({("p", "key"): Intervals([7])})
    entries = [entry(1, sequence=s) for s in (7, 8, 9, 9)] + [entry(0, 0, 7)]
    assert known.repeated(entries) == {PLACE, ("p", "key", 9)}


def test_the_hash_is_of_the_content_and_not_of_the_schemas_number():
    assert content_hash(b"\0\0\0\0\x02body") == content_hash(b"\0\0\0\1\x07body") != content_hash(b"\0\0\0\0\x02bodY")
    assert content_hash(b"") != 0
