"""The offset at which a sink resumes a partition: in these tests Kafka's first offset is 100."""

import pytest

from drumline.schemas.parts.joining import position
from drumline.schemas.topics import Topic
from drumline.sinks.errors import LostRecords
from drumline.sinks.ranges.intent import Intent, write_done, write_intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.resume import resume_from
from drumline.sinks.tables.tables import table


def started(offset, metadata, *, accept_loss=False, compacted=False):
    state = PartitionState(table(Topic.KERNEL), 2, "id", 100, compacted)
    resume_from(state, offset, metadata, accept_loss=accept_loss)
    return state.next_offset, state.intent


@pytest.mark.parametrize(
    ("offset", "metadata", "first"),
    [
        pytest.param(-1001, None, 100, id="nothing was ever committed"),
        pytest.param(150, write_done("id"), 150, id="all before is stored"),
        pytest.param(150, "", 150, id="set by hand"),
        pytest.param(150, write_done("another"), 100, id="the topic was recreated"),
        pytest.param(50, write_done("another"), 100, id="the topic was recreated, with later offsets"),
    ],
)
def test_it_goes_on_where_the_group_is_in_this_very_topic(offset, metadata, first):
    assert started(offset, metadata) == (first, None)


def test_a_range_with_a_committed_intent_is_read_again():
    intent = Intent(
        OffsetRange("id", 2, 150, 160), 11, 500, frozenset({position(151, 0)}), frozenset({position(152, 2)})
    )
    assert started(150, write_intent(intent)) == (150, intent)


def test_records_that_kafka_removed_are_a_loss_unless_that_is_accepted():
    with pytest.raises(LostRecords, match=r"removed 40 records \(60..99\)"):
        started(60, write_done("id"))
    assert started(60, write_done("id"), accept_loss=True) == (100, None)


def test_a_removed_range_with_a_committed_intent_is_given_up_when_loss_is_accepted():
    committed_intent = write_intent(Intent(OffsetRange("id", 2, 60, 70), 11, 500))
    assert started(60, committed_intent, accept_loss=True) == (100, None)


def test_of_a_compacted_topic_nothing_is_lost():
    assert started(60, write_done("id"), compacted=True) == (60, None)


def test_what_another_program_committed_is_not_believed():
    with pytest.raises(LostRecords, match="another program commits to this group"):
        started(150, "foreign", accept_loss=True)
