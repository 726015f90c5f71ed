"""Counts of rows beside the published ones."""

from drumline.lab.row_counts import STORED, counts
from drumline.schemas.topics import RAW_TOPICS, Topic


def test_every_raw_topic_is_counted_but_the_one_of_which_only_the_newest_rows_are_kept():
    answers = counts(lambda sql, values: [{"n": 2}], "r", {topic.value: 3 for topic in RAW_TOPICS})
    assert {count.topic for count in answers} == {t.value for t in RAW_TOPICS} - {Topic.PROGRESS.value} == set(STORED)
    assert {(count.published, count.stored) for count in answers} == {(3, 2)}
