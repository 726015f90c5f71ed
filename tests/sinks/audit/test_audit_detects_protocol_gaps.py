"""Each part of the exactly-once protocol is needed: without it, a kill loses or doubles rows, and the audit reports it.

The sink is broken on purpose, one part at a time, and dies while both of its lanes insert; another, just as broken,
continues.
"""

import uuid

import pytest
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.schemas.topics import Topic
from drumline.sinks import commit_cycle
from drumline.sinks.commit_cycle import PRESSURE
from drumline.sinks.errors import LostRecords
from drumline.sinks.inserts.insert import RangeWriter
from drumline.sinks.inserts.insert_lanes import LANES
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.ranges.offset_ranges import OffsetRange

pytestmark = pytest.mark.stack
#: Processes that go to a partition each, and batches of each: before the kill and after.
PROCESSES, FIRST, MORE = (0, 1, 5), 4, 1
ROWS = 100


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def batches(first, count, processes=PROCESSES):
    return [any_batch(Topic.KERNEL, ROWS, process_id(p), first + i, p) for p in processes for i in range(count)]


def nothing(pipeline, monkeypatch):
    pass


def token(pipeline, monkeypatch):
    """A token of the attempt, not of the range."""
    monkeypatch.setattr(OffsetRange, "token", property(lambda self: uuid.uuid4().hex))


def intent(pipeline, monkeypatch):
    """Offsets are committed when rows are stored, and no intent is committed before."""
    commit = SinkConsumer.commit
    monkeypatch.setattr(
        SinkConsumer, "commit", lambda self, commits: commit(self, [c for c in commits if '"to":' not in c[2]])
    )


def forgetful(pipeline, table):
    """ClickHouse forgets the tokens of one table."""
    pipeline.client().command(
        f"ALTER TABLE {pipeline.settings.clickhouse.database}.{table} "
        "MODIFY SETTING non_replicated_deduplication_window = 0"
    )


def window(pipeline, monkeypatch):
    forgetful(pipeline, "kernels")


def rollup_window(pipeline, monkeypatch):
    forgetful(pipeline, "kernels_per_minute")


def ledger(pipeline, monkeypatch):
    monkeypatch.setattr(RangeWriter, "insert_ledger", lambda self, pending: None)


def die_after_rows(pipeline, monkeypatch):
    """Kill the sink between steps 4 and 5, with a range in each lane and the intent of another one committed."""

    class Killed(BaseException):
        pass

    insert, inserted = RangeWriter.insert_rows, []

    def dies(self, pending):
        insert(self, pending)
        inserted.append(pending.range.partition)
        raise Killed

    monkeypatch.setattr(RangeWriter, "insert_rows", dies)
    of_all = len(PROCESSES) * FIRST * ROWS
    sink = pipeline.settings.sink  # all at once, and not before all is there
    pipeline.settings.instance, sink.flush_s, sink.flush_rows = "1", 60.0, of_all // PRESSURE
    with pytest.raises(Killed):
        pipeline.sink(lambda _: False).run()
    assert len(set(inserted)) == len(inserted) == LANES < len(PROCESSES)


@pytest.mark.parametrize(
    ("without", "kind"),
    [
        (nothing, set()),
        (token, {"doubled", "rollup_differs"}),
        (intent, {"doubled", "rollup_differs"}),
        (window, {"doubled"}),
        (rollup_window, {"rollup_differs"}),
        (ledger, {"lost", "doubled", "rollup_differs"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_without_it_a_kill_after_the_rows_is_found_by_the_audit(pipeline, monkeypatch, without, kind):
    without(pipeline, monkeypatch)
    pipeline.publish(*batches(0, FIRST))
    with monkeypatch.context() as deadly:
        die_after_rows(pipeline, deadly)
    pipeline.publish(*batches(FIRST, MORE))
    pipeline.drain(len(PROCESSES) * (FIRST + MORE))
    assert {finding.kind for finding in pipeline.audit().findings} == kind


def test_without_the_ledger_a_sink_refuses_and_would_store_again(pipeline, monkeypatch):
    ledger(pipeline, monkeypatch)
    pipeline.publish(*batches(0, FIRST))
    pipeline.drain(len(PROCESSES) * FIRST)
    pipeline.publish(*batches(0, FIRST), again=True)
    with pytest.raises(LostRecords):
        pipeline.drain(len(PROCESSES) * FIRST)
    [stored] = pipeline.query("SELECT count() AS n FROM {db}.kernels")
    assert stored["n"] == len(PROCESSES) * FIRST * ROWS
    monkeypatch.setattr(commit_cycle, "is_behind", lambda state, stored, accept_loss: False)
    pipeline.drain(len(PROCESSES) * FIRST)
    [stored] = pipeline.query("SELECT count() AS n FROM {db}.kernels")
    assert stored["n"] == 2 * len(PROCESSES) * FIRST * ROWS
    assert not pipeline.audit().clean
