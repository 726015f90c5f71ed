"""Whatever numbers of partitions topics have, advice about them works when it is followed."""

import random

import pytest

from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.partition_counts import remedies
from drumline.infra.kafka.topic_admin import ActualTopic, declared_topics, plan
from drumline.schemas.topics import JOINED_TOPICS, TOPICS, Topic, dlq

GROWN = (Topic.STEP, Topic.COLLECTIVE, Topic.KERNEL)


def settings(partitions=4, **topic_partitions):
    return Settings(kafka=KafkaSettings(partitions=partitions, topic_partitions=topic_partitions))


def existing(config, **numbers):
    """All topics as declared, but for `numbers`; None = the topic does not exist."""
    topics = {topic.name: ActualTopic(topic.partitions, 1, topic.config) for topic in declared_topics(config)}
    for name, number in numbers.items():
        topics[name] = None if number is None else ActualTopic(number, 1, topics[name].config)
    return {name: topic for name, topic in topics.items() if topic is not None}


def followed(config, topics, remedy):
    """Settings and topics after the remedy, except for its `drumline topics apply`."""
    kafka = config.kafka
    partitions = kafka.partitions if remedy.partitions is None else remedy.partitions
    several = kafka.topic_partitions if remedy.topic_partitions is None else remedy.topic_partitions
    left = {name: topic for name, topic in topics.items() if name not in remedy.recreated}
    return Settings(kafka=KafkaSettings(partitions=partitions, topic_partitions=several)), left


def ways(config, topics):
    declared = {topic.name: topic.partitions for topic in declared_topics(config) if not topic.any_partitions}
    return remedies(declared, {name: topic.partitions for name, topic in topics.items()})


def test_three_topics_that_workers_join_and_that_grew_are_recreated():
    config = settings()
    topics = existing(config, **dict.fromkeys(GROWN, 6))
    [way] = ways(config, topics)
    assert (way.partitions, way.topic_partitions, set(way.recreated)) == (None, None, set(GROWN))
    errors = [step for step in plan(declared_topics(config), topics) if step.action == "error"]
    assert {step.topic for step in errors} == set(GROWN)
    for step in errors:
        assert "PARTITIONS=" not in step.remedy
        assert all(name in step.remedy for name in GROWN)


def test_all_topics_of_another_number_keep_it_with_one_setting():
    config = settings(6)
    way = ways(config, existing(settings(4)))[0]
    assert (way.partitions, way.topic_partitions, way.recreated) == (4, None, ())


def test_joined_topics_that_all_grew_keep_their_number_beside_others():
    config = settings()
    way = ways(config, existing(config, **dict.fromkeys(JOINED_TOPICS, 6)))[0]
    assert (way.partitions, way.recreated) == (6, ())
    assert way.topic_partitions == {str(spec.topic): 4 for spec in TOPICS if not spec.joined}


def test_a_topic_of_a_newer_version_is_not_created_with_another_number_than_those_it_is_joined_with():
    topics = existing(settings(6), **{Topic.STACK: None})
    [step] = [step for step in plan(declared_topics(settings(4)), topics) if step.topic == Topic.STACK]
    assert step.action == "error"
    assert "DRUMLINE_KAFKA__PARTITIONS=6" in step.remedy


def test_a_dead_letter_topic_may_have_any_number_since_no_setting_states_it():
    config = settings()
    steps = plan(declared_topics(config), existing(config, **{dlq(Topic.KERNEL): 3}))
    assert {step.action for step in steps} == {"ok"}


@pytest.mark.parametrize("seed", range(200))
def test_advice_that_is_followed_leaves_nothing_to_correct(seed):
    chance = random.Random(seed)
    unjoined = [str(spec.topic) for spec in TOPICS if not spec.joined]
    given = {name: chance.randint(1, 8) for name in chance.sample(unjoined, chance.randint(0, 3))}
    config = settings(chance.randint(1, 6), **given)
    names = [topic.name for topic in declared_topics(config)]
    numbers = {name: chance.choice([None, 4, 6, 8]) for name in chance.sample(names, chance.randint(0, len(names)))}
    topics = existing(config, **numbers)
    for way in ways(config, topics):
        after, left = followed(config, topics, way)
        assert {step.action for step in plan(declared_topics(after), left)} <= {"ok", "create"}, way.text
        created = {topic.name: topic.partitions for topic in declared_topics(after)}
        joined = {left[name].partitions if name in left else created[name] for name in map(str, JOINED_TOPICS)}
        assert len(joined) == 1, way.text
