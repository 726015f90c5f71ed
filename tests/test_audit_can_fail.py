"""What each part of the exactly-once protocol is for: without it, a kill loses or doubles rows, and the audit says so.

The sink is broken on purpose, one part at a time, and dies in the middle of a range; another, just as broken, goes on.
"""

import uuid

import pytest
from sink_helpers import Pipeline, any_batch, process_id

from drumline.schemas.topics import Topic
from drumline.sinks.consumer import SinkConsumer
from drumline.sinks.ranges import OffsetRange
from drumline.sinks.writer import Writer

pytestmark = pytest.mark.stack
FIRST, MORE = 12, 3


@pytest.fixture
def pipeline(clean_stack, environment_of):
    made = Pipeline(clean_stack, environment_of(clean_stack))
    yield made
    made.stop()


def batches(first, count):
    return [any_batch(Topic.KERNEL, 100, process_id(0), first + i) for i in range(count)]


def nothing(pipeline, monkeypatch):
    pass


def token(pipeline, monkeypatch):
    """A token of the attempt, not of the range."""
    monkeypatch.setattr(OffsetRange, "token", property(lambda self: uuid.uuid4().hex))


def intent(pipeline, monkeypatch):
    """Offsets are committed when rows are stored, and nothing is announced before."""
    commit = SinkConsumer.commit
    monkeypatch.setattr(
        SinkConsumer, "commit", lambda self, commits: commit(self, [c for c in commits if '"to":' not in c[2]])
    )


def window(pipeline, monkeypatch):
    """ClickHouse forgets the tokens of one table."""
    pipeline.client().command(
        f"ALTER TABLE {pipeline.settings.clickhouse.database}.kernels "
        "MODIFY SETTING non_replicated_deduplication_window = 0"
    )


def ledger(pipeline, monkeypatch):
    monkeypatch.setattr(Writer, "insert_ledger", lambda self, pending: None)


def die_after_rows(monkeypatch):
    """What kill -9 does between steps 4 and 5."""

    class Killed(BaseException):
        pass

    insert = Writer.insert_rows

    def dies(self, pending):
        insert(self, pending)
        raise Killed

    monkeypatch.setattr(Writer, "insert_rows", dies)
    return Killed


@pytest.mark.parametrize(
    ("without", "found"),
    [
        (nothing, set()),
        (token, {"doubled"}),
        (intent, {"doubled"}),
        (window, {"doubled"}),
        (ledger, {"lost", "doubled"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_without_it_a_kill_after_the_rows_is_found_by_the_audit(pipeline, monkeypatch, without, found):
    without(pipeline, monkeypatch)
    pipeline.publish(*batches(0, FIRST))
    with monkeypatch.context() as deadly, pytest.raises(die_after_rows(deadly)):
        pipeline.drain(99)
    pipeline.publish(*batches(FIRST, MORE))
    pipeline.drain(FIRST + MORE)
    assert {finding.kind for finding in pipeline.audit().findings} == found


def test_without_the_ledger_batches_published_again_are_stored_again(pipeline, monkeypatch):
    ledger(pipeline, monkeypatch)
    pipeline.publish(*batches(0, 4))
    pipeline.drain(4)
    pipeline.publish(*batches(0, 4), again=True)
    pipeline.drain(4)
    [stored] = pipeline.query("SELECT count() AS n FROM {db}.kernels")
    assert stored["n"] == 800
    assert not pipeline.audit().clean
