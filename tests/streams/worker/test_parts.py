"""A record with parts is to stages as many batches, each with a position of its own; a bad part is one dead letter."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from support.labs.stage_feed import seen
from support.straggler_simulator import MS, Fault, batches, mesh, simulate
from support.tables import apply_batch, parts_of

from drumline.infra.config.settings import Settings
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.keys import record_key
from drumline.schemas.parts.joining import position
from drumline.schemas.record_table import BatchTable
from drumline.schemas.tenants import SIGNATURE_HEADER
from drumline.schemas.topics import Topic
from drumline.streams.core.records import unpack_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.lateness.state import CommunicatorState
from drumline.streams.offline import applied, verdicts
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.stragglers.step_rows import STEP_ROW
from drumline.streams.worker.ack_queue import Delivery
from drumline.streams.worker.checks.preflight import WorkerTopics
from drumline.streams.worker.faust_app import StreamWorker, Wiring
from drumline.streams.worker.offsets import TopicPositions
from drumline.streams.worker.partition_store import PartitionStore
from drumline.streams.worker.records.handler import PartitionRevoked

SECOND = 1_000_000_000
CONFIG = StragglerConfig(window_steps=12)
STREAM = batches(simulate(mesh(2, 2), 60, (Fault(1, "idle", 25 * MS, first=12, last=35),)))
CODEC = Codec()


def written(_key="", _value=None):
    """Return what awaits a change that the broker has."""
    done = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A worker with both straggler stages on one partition, whose results are kept: `published`, `buried`."""
    stages = {"communicator": CommunicatorStage, "job": JobStage}
    inputs = {"communicator": (Topic.COLLECTIVE,), "job": (Topic.STEP, Topic.LATENESS)}
    wirings = [Wiring(name, inputs[name], lambda store: None) for name in stages]
    created = StreamWorker(Settings(stream={"data_dir": tmp_path}), wirings, WorkerTopics(1, {}), CODEC)
    created.published, created.buried, created.stages = [], [], {}
    for name, runner in created.runners.items():
        store = PartitionStore({}, written)
        created.stages[name] = stages[name](store, CONFIG)
        runner._parts[0] = created.stages[name], store
        runner._positions[0] = TopicPositions(store, {})
        runner._highest[0] = {}
    monkeypatch.setattr(created._fencing, "epoch", lambda _place: 1)

    async def send(batch, _header):
        created.published.append(batch)
        return written()

    async def send_dead_letter(message, error, part=0, value=None):
        created.buried.append((message.offset, part, value))
        return written()

    for runner in created.runners.values():
        monkeypatch.setattr(runner, "_send", send)
    monkeypatch.setattr(created.records._output, "send_dead_letter", send_dead_letter)
    yield created
    created.close()


def message(topic, key, value, offset):
    return SimpleNamespace(
        topic=topic, partition=0, offset=offset, key=key.encode(), value=value, headers=[], timestamp=0
    )


async def handle(worker, records, lateness_together=1):
    """Process records as agents join them, and what the lateness stage publishes; time passes to the end."""
    offsets, read = dict.fromkeys(Topic, -1), 0
    now = 0

    async def deliver(topic, key, *values):
        first, offsets[topic] = offsets[topic] + 1, offsets[topic] + len(values)
        delivery = Delivery(lambda: None)
        messages = [message(topic, key, value, offset) for offset, value in enumerate(values, first)]
        await worker.records.handle(messages, delivery)
        for output in delivery.outputs:
            output.stage.mark_sent(output.batch)

    async def follow():
        nonlocal read
        while read < len(worker.published):
            batches, read = worker.published[read:], len(worker.published)
            values = [CODEC.encode(batch) for batch in batches if batch.topic == Topic.LATENESS]
            for at in range(0, len(values), lateness_together):
                await deliver(Topic.LATENESS, "job", *values[at : at + lateness_together])

    for now, topic, key, value in records:
        worker.records.clock = lambda now=now: now
        await deliver(topic, key, value)
        await follow()
    for _ in range(3):
        now += 2 * CONFIG.idle_ns
        for stage in worker.stages.values():
            for batch in stage.on_tick(now, True):
                worker.published.append(batch)
                stage.mark_sent(batch)
            await follow()


def watched(worker, monkeypatch):
    """The tables that the worker applies."""
    tables, apply = [], worker.records._apply
    monkeypatch.setattr(worker.records, "_apply", lambda *given: (tables.append(given[2]), apply(*given))[1])
    return tables


def joined(stream, most):
    """The stream as agents publish it that join up to `most` batches of a topic and key."""
    waiting = {}
    for time_ns, batch in stream:
        place = str(batch.topic), record_key(batch)
        parts = waiting.setdefault(place, [])
        parts.append(CODEC.encode(batch))
        if len(parts) == most:
            yield time_ns, *place, CODEC.merge(place[0], waiting.pop(place))
    for place, parts in waiting.items():
        yield stream[-1][0], *place, CODEC.merge(place[0], parts)


def test_verdicts_on_lateness_that_is_applied_together_are_those_on_each_record(worker, monkeypatch):
    tables = watched(worker, monkeypatch)
    asyncio.run(handle(worker, joined(STREAM, 4), 3))
    assert seen(b for b in worker.published if b.topic == Topic.STRAGGLER) == seen(verdicts(STREAM, CONFIG))
    assert not worker.buried
    assert {table.parts for table in tables if table.topic == Topic.LATENESS} >= {2, 3}


def test_lateness_that_is_bad_is_a_dead_letter_and_what_comes_with_it_counts(worker):
    stage = CommunicatorStage({}, CONFIG)
    results = [b for at, batch in STREAM if batch.topic == Topic.COLLECTIVE for b in apply_batch(stage, batch, at, at)]
    values = [CODEC.encode(batch) for batch in results[:3]]
    values.insert(1, values[0][:-3])
    worker.records.clock = lambda: STREAM[-1][0]
    messages = [message(Topic.LATENESS, "job", value, offset) for offset, value in enumerate(values)]
    asyncio.run(worker.records.handle(messages, Delivery(lambda: None)))
    assert worker.buried == [(1, 0, None)]
    state = worker.stages["job"].states["3:job|run"]
    assert {*state.sources.communicators} == {batch.envelope["communicator"] for batch in results[:3]}


def test_lateness_on_which_its_stage_fails_is_all_dead_letters(worker, monkeypatch):
    stage = CommunicatorStage({}, CONFIG)
    results = [b for at, batch in STREAM if batch.topic == Topic.COLLECTIVE for b in apply_batch(stage, batch, at, at)]

    def fail(*_):
        raise ValueError

    monkeypatch.setattr(worker.stages["job"], "_apply", fail)
    worker.records.clock = lambda: STREAM[-1][0]
    messages = [message(Topic.LATENESS, "job", CODEC.encode(b), offset) for offset, b in enumerate(results[:2])]
    asyncio.run(worker.records.handle(messages, Delivery(lambda: None)))
    assert worker.buried == [(0, 0, None), (1, 0, None)]


@pytest.mark.parametrize("most", [1, 4, 7])
def test_verdicts_on_merged_records_are_those_on_the_batches(worker, monkeypatch, most):
    expected, tables = seen(verdicts(STREAM, CONFIG)), watched(worker, monkeypatch)
    asyncio.run(handle(worker, joined(STREAM, most)))
    assert seen(b for b in worker.published if b.topic == Topic.STRAGGLER) == expected
    assert not worker.buried
    assert {table.topic for table in tables if isinstance(table, BatchTable)} == {Topic.LATENESS}


def test_a_merged_part_outside_its_bounds_is_a_dead_letter_and_the_others_count(worker):
    steps = [batch for _, batch in STREAM if batch.topic == Topic.STEP][:3]
    values = [CODEC.encode(batch) for batch in steps]
    bad = Batch(Topic.STEP, {**steps[1].envelope, "world_size": -1}, steps[1].columns)
    values[1] = CODEC.encode(bad)
    worker.records.clock = lambda: STREAM[-1][0]
    record = CODEC.merge(Topic.STEP, values)
    asyncio.run(worker.records.handle([message(Topic.STEP, "job", record, 4)], Delivery(lambda: None)))
    assert worker.buried == [(4, 2, values[1])]
    assert len(worker.stages["job"].states["3:job|run"].sources.ranks) == 2


def test_a_merged_record_about_several_communicators_is_one_dead_letter(worker):
    values = [CODEC.encode(batch) for _, batch in STREAM if batch.topic == Topic.COLLECTIVE]
    names = [CODEC.decode(Topic.COLLECTIVE, value).envelope["communicator"] for value in values]
    other = next(at for at, name in enumerate(names) if name != names[0])
    record = CODEC.merge(Topic.COLLECTIVE, [values[0], values[other]])
    worker.records.clock = lambda: STREAM[-1][0]
    good = CODEC.merge(Topic.COLLECTIVE, [values[0]])
    messages = [message(Topic.COLLECTIVE, "job:c", value, offset) for offset, value in enumerate((record, good), 4)]
    asyncio.run(worker.records.handle(messages, Delivery(lambda: None)))
    assert worker.buried == [(4, 0, None)]
    assert {name for _, name in worker.stages["communicator"].states} == {names[0]}


def of_communicators(most=3):
    """Communicator -> records of its first collectives."""
    records = {}
    for _, _, key, value in joined([item for item in STREAM if item[1].topic == Topic.COLLECTIVE][:40], most):
        records.setdefault(key.removeprefix("job:"), []).append(value)
    return records


def together(records):
    """Messages in which communicators alternate."""
    most = max(map(len, records.values()))
    placed = [(name, values[at]) for at in range(most) for name, values in records.items() if at < len(values)]
    return [message(Topic.COLLECTIVE, f"job:{name}", value, offset) for offset, (name, value) in enumerate(placed)]


def test_collectives_of_many_communicators_that_are_applied_together_give_the_state_that_they_give_one_by_one(worker):
    messages, single = together(of_communicators()), CommunicatorStage({}, CONFIG)
    worker.records.clock = lambda: STREAM[0][0]
    asyncio.run(worker.records.handle(messages, Delivery(lambda: None)))
    for of in messages:
        merged = parts_of(CODEC, Topic.COLLECTIVE, of.value).merged
        applied(single, merged, np.array([position(of.offset, part + 1) for part in range(merged.parts)]), STREAM[0][0])
    assert len(single.states) > 2
    for unit, expected in single.states.items():
        state = worker.stages["communicator"].states[unit]
        assert state.members == expected.members
        assert state.dirty == expected.dirty
    assert not worker.buried


def test_a_communicator_that_fails_costs_no_other_that_is_applied_with_it(worker, monkeypatch):
    messages, apply = together(of_communicators()), CommunicatorState.apply
    bad = messages[1].key.decode().removeprefix("job:")

    def applied(state, *given):
        if state.communicator == bad:
            raise IndexError
        apply(state, *given)

    monkeypatch.setattr(CommunicatorState, "apply", applied)
    worker.records.clock = lambda: STREAM[0][0]
    asyncio.run(worker.records.handle(messages, Delivery(lambda: None)))
    assert worker.buried == [(of.offset, 0, None) for of in messages if of.key.decode().endswith(bad)]
    stage = worker.stages["communicator"]
    assert {name for _, name in stage.states} == {*of_communicators()} - {bad}
    assert all(state.members for state in stage.states.values())


def test_parts_of_one_record_that_are_of_one_rank_all_count_and_come_again_in_vain(worker):
    steps = [(at, batch) for at, batch in STREAM if batch.topic == Topic.STEP and batch.envelope["rank"] == 0]
    [record] = joined(steps[:5], 5)

    async def twice():
        for _ in range(2):
            await worker.records.handle([message(*record[1:], 0)], Delivery(lambda: None))

    worker.records.clock = lambda: record[0]
    asyncio.run(twice())
    stage = worker.stages["job"]
    assert stage.duplicates >= 5
    state = stage.states["3:job|run"]
    rows = sum(len(state.steps.rank_rows(window, 0)) for window in state.blocks)
    assert rows == sum(batch.rows for _, batch in steps[:5])


def with_a_bad_one():
    """The first batch of steps, and the same beyond its bounds."""
    good = next(batch for _, batch in STREAM if batch.topic == Topic.STEP)
    return good, Batch(Topic.STEP, {**good.envelope, "world_size": -1}, good.columns)


def test_bad_parts_that_were_signed_together_are_one_dead_letter_of_the_record(worker):
    good, bad = (CODEC.encode(batch) for batch in with_a_bad_one())
    signed = message(Topic.STEP, "job", CODEC.merge(Topic.STEP, [bad, good, bad]), 4)
    signed.headers = [(SIGNATURE_HEADER, b"s")]
    asyncio.run(worker.records.handle([signed], Delivery(lambda: None)))
    assert worker.buried == [(4, 0, None)]


@pytest.mark.parametrize("joined", [True, False], ids=["parts", "records"])
def test_no_part_or_record_goes_on_into_a_stage_that_was_built_while_one_was_in_work(worker, monkeypatch, joined):
    values = [CODEC.encode(batch) for _, batch in STREAM if batch.topic == Topic.STEP][:3]
    _, bad = with_a_bad_one()
    runner = worker.runners["job"]
    apply, applied = runner.apply, []

    async def rebuilt_meanwhile(partition, work):
        applied.append(work)
        result = await apply(partition, work)
        store = PartitionStore({}, written)
        runner._parts[0] = JobStage(store, CONFIG), store
        return result

    monkeypatch.setattr(runner, "apply", rebuilt_meanwhile)
    if joined:
        records = [CODEC.merge(Topic.STEP, [*values, CODEC.encode(bad)])]  # each part by itself, since one is bad
    else:
        records = [values[0], CODEC.merge(Topic.STEP, values[1:])]  # of two units
    messages = [message(Topic.STEP, "job", value, 4 + number) for number, value in enumerate(records)]
    with pytest.raises(PartitionRevoked):
        asyncio.run(worker.records.handle(messages, Delivery(lambda: None)))
    assert len(applied) == 1


def in_hosts(stream, most):
    """The records of joined batches, several of one topic and time together as a worker that has many takes them."""
    waiting = []
    for time_ns, topic, key, value in joined(stream, most):
        if waiting and (waiting[-1][1] != topic or len(waiting) == 5):
            yield waiting
            waiting = []
        waiting.append((time_ns, topic, key, value))
    yield waiting


@pytest.mark.parametrize("most", [1, 3])
def test_records_that_are_applied_together_give_the_state_that_they_give_one_by_one(worker, most):
    steps = [(at, batch) for at, batch in STREAM if batch.topic == Topic.STEP]
    worker.records.clock = lambda: STREAM[-1][0]
    single = JobStage({}, CONFIG)

    async def together():
        offset = 0
        for records in in_hosts(steps, most):
            messages = [message(topic, key, value, offset + at) for at, (_, topic, key, value) in enumerate(records)]
            await worker.records.handle(messages, Delivery(lambda: None))
            offset += len(messages)

    asyncio.run(together())
    for number, (_, batch) in enumerate(steps):
        apply_batch(single, batch, number, STREAM[-1][0])
    of_both = [stage.states["3:job|run"] for stage in (worker.stages["job"], single)]
    assert {*of_both[0].blocks} == {*of_both[1].blocks}
    for window in of_both[0].blocks:
        for rank in range(4):
            [rows, expected] = (state.steps.rank_rows(window, rank) for state in of_both)
            assert rows.tolist() == expected.tolist()
    assert of_both[0].sources.ranks == of_both[1].sources.ranks


def test_a_bad_record_among_others_is_a_dead_letter_and_the_others_count(worker):
    steps = [batch for _, batch in STREAM if batch.topic == Topic.STEP][:4]
    bad = Batch(Topic.STEP, {**steps[1].envelope, "world_size": -1}, steps[1].columns)
    values = [CODEC.encode(batch) for batch in (steps[0], bad, *steps[2:])]
    records = [CODEC.merge(Topic.STEP, [value]) for value in values]
    records.insert(2, records[0][:-3])
    messages = [message(Topic.STEP, "job", value, offset) for offset, value in enumerate(records)]
    worker.records.clock = lambda: STREAM[-1][0]
    asyncio.run(worker.records.handle(messages, Delivery(lambda: None)))
    assert worker.buried == [(2, 0, None), (1, 1, values[1])]
    assert len(worker.stages["job"].states["3:job|run"].sources.ranks) == 3


def test_records_on_which_their_stage_fails_are_all_dead_letters(worker, monkeypatch):
    values = [CODEC.encode(batch) for _, batch in STREAM if batch.topic == Topic.STEP][:3]

    def fail(*_):
        raise ValueError

    monkeypatch.setattr(worker.stages["job"], "_apply", fail)
    worker.records.clock = lambda: STREAM[-1][0]
    messages = [message(Topic.STEP, "job", CODEC.merge(Topic.STEP, [v]), offset) for offset, v in enumerate(values)]
    asyncio.run(worker.records.handle(messages, Delivery(lambda: None)))
    assert worker.buried == [(offset, 0, None) for offset in range(3)]


def test_records_that_come_again_in_other_company_do_not_count_twice(worker):
    """After a restart a record may be read with others than before."""
    steps = [batch for _, batch in STREAM if batch.topic == Topic.STEP][:8]
    records = [CODEC.merge(Topic.STEP, [CODEC.encode(batch)]) for batch in steps]
    messages = [message(Topic.STEP, "job", value, offset) for offset, value in enumerate(records)]
    worker.records.clock = lambda: STREAM[-1][0]

    async def test():
        for begin, end in ((0, 3), (3, 6), (1, 5), (2, 8), (0, 8)):
            await worker.records.handle(messages[begin:end], Delivery(lambda: None))

    asyncio.run(test())
    stage = worker.stages["job"]
    state = stage.states["3:job|run"]
    stored = [
        len(unpack_rows(value, STEP_ROW).rows)
        for window in state.blocks
        for value in state.steps.values(window, state.blocks[window].reports)
    ]
    assert sum(stored) == sum(batch.rows for batch in steps)
    assert stage.duplicates == 4 + 4 + 8


def test_a_batch_and_a_table_without_a_job_are_read_apart(worker):
    """Both have the schema's id, and neither a job nor a run."""
    envelope = {"rows": 0, "job": "", "run": "", "process_id": "p", "world_size": 1}
    values = [CODEC.encode(Batch(Topic.STEP, {**envelope, "sequence": number})) for number in range(3)]
    worker.records.clock = lambda: STREAM[-1][0]
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0)):
        records = [CODEC.merge(Topic.STEP, [values[0]]) if number == 0 else values[number] for number in order]
        messages = [message(Topic.STEP, "p", value, offset) for offset, value in enumerate(records)]
        asyncio.run(worker.records.handle(messages, Delivery(lambda: None)))
    assert not worker.buried


def test_a_stage_that_is_used_again_before_its_incident_is_sent_loses_no_dead_letter(worker, monkeypatch):
    stage, runner = worker.stages["job"], worker.runners["job"]
    value = CODEC.encode(next(batch for _, batch in STREAM if batch.topic == Topic.STEP))
    sent = runner._send

    def fail(unit, table, *_):
        if table.topic == Topic.STEP:
            raise ValueError
        return []

    async def send(batch, header):  # another topic's records come meanwhile
        stage.apply(BatchTable.of([Batch(Topic.HOST, {"rows": 0, "job": "other", "run": "r"})]), np.array([0]), 1)
        return await sent(batch, header)

    monkeypatch.setattr(stage, "_apply", fail)
    monkeypatch.setattr(runner, "_send", send)
    worker.records.clock = lambda: STREAM[-1][0]
    asyncio.run(worker.records.handle([message(Topic.STEP, "job", value, 7)], Delivery(lambda: None)))
    assert worker.buried == [(7, 0, None)]
