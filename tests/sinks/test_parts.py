"""Records with parts are stored part by part, exactly once, also where an agent that was killed cuts them otherwise."""

import random

import pytest
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.schemas.topics import Topic

pytestmark = pytest.mark.stack
TOPICS = [Topic.STEP, Topic.COLLECTIVE]


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def cut(batches, chance):
    """The batches in records of 1 to 9."""
    left = list(batches)
    while left:
        most = chance.randrange(1, 10)
        yield left[:most]
        left = left[most:]


def test_parts_are_stored_once_and_the_audit_accounts_for_each(pipeline):
    chance, records = random.Random(1), 0
    for topic in TOPICS:
        of_process = [[any_batch(topic, n % 4, process_id(p), n, seed=p) for n in range(40)] for p in range(4)]
        batches = [batch for together in zip(*of_process, strict=True) for batch in together]
        for again in (False, True):  # the second time cut otherwise, and from the middle on
            for part in cut(batches[70:] if again else batches, chance):
                values = [pipeline.codec.encode(batch) for batch in part]
                value = values[0] if len(values) == 1 else pipeline.codec.merge(topic, values)
                pipeline.raw(topic, "job", value, flush=False)
                records += 1
        pipeline.published[topic] = sum(batch.rows for batch in batches)
        bad, good = any_batch(topic, 2, process_id(9), 0), any_batch(topic, 3, process_id(8), 0)
        bad.envelope["world_size"] = -1
        values = [pipeline.codec.encode(batch) for batch in (bad, good)]
        pipeline.raw(topic, "job", pipeline.codec.merge(topic, values))
        pipeline.published[topic] += 3
        records += 1
    pipeline.drain(records, TOPICS)
    report = pipeline.assert_exactly_once()
    of = {account.topic: account for account in report.topics}
    for topic in TOPICS:
        assert (of[topic].duplicate, of[topic].dead) == (90, 1)
        [buried] = pipeline.dead_letters(topic, 1)
        assert len(buried.value()) < 4_000, "the part alone"
    numbers = pipeline.query("SELECT max(part) AS most, countIf(part > 0) AS parts FROM {db}.ledger")[0]
    assert (int(numbers["most"]), int(numbers["parts"]) > 200) == (9, True)


@pytest.mark.long
def test_a_kill_while_parts_are_stored_changes_nothing(pipeline):
    topic, chance = Topic.STEP, random.Random(2)
    batches = [any_batch(topic, 20, process_id(n % 8), n // 8, seed=n % 8) for n in range(4_000)]
    for part in cut(batches, chance):
        values = [pipeline.codec.encode(batch) for batch in part]
        pipeline.raw(topic, "job", pipeline.codec.merge(topic, values), flush=False)
    assert pipeline.producer.flush(60) == 0
    pipeline.published[topic] = sum(batch.rows for batch in batches)
    for _ in range(3):
        pipeline.started(flush_rows=2_000, flush_s=0.05).kill()
        pipeline.sinks[-1].wait()
    pipeline.start(flush_s=0.05)
    pipeline.wait_drained()
    pipeline.assert_exactly_once()
