"""Records that are read together become the rows, ledger rows and intents that they become one by one."""

import json
import random
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError
from support.labs.sink import NOW_NS, any_batch, process_id
from support.tables import merged_record

from drumline.infra.config.settings import SinkSettings
from drumline.infra.kafka.registry import ConfluentRegistry
from drumline.schemas.batch import encode
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import HEADER, header
from drumline.schemas.epochs import write_epoch
from drumline.schemas.model import model
from drumline.schemas.parts.joining import JOINED_BY_AGENTS
from drumline.schemas.parts.merged import MERGED
from drumline.schemas.tenants import Tenant, TenantGuard, signed_headers
from drumline.schemas.topics import DERIVED_TOPICS, Topic
from drumline.sinks import intake as intake_module
from drumline.sinks.inserts.ledger import ledger_block
from drumline.sinks.intake import Intake
from drumline.sinks.ranges import reading as reading_module
from drumline.sinks.ranges.disposition import OBJECT_BYTES, Disposition, Record
from drumline.sinks.ranges.duplicates import StoredBatches
from drumline.sinks.ranges.intent import write_intent
from drumline.sinks.ranges.offset_ranges import Intervals
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.tables.blocks import DAY_NS, rows_block
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts, count_conflicts

CODEC = Codec()
NOW_MS = NOW_NS // 1_000_000 + 60_000
SMALL = [*sorted(JOINED_BY_AGENTS), Topic.PROCESS, Topic.NETWORK, Topic.LATENESS, Topic.KERNEL_FREQUENCY, Topic.HANG]
BAD = {Disposition.DEAD_LETTER, Disposition.DUPLICATE}


def batches(topic, chance):
    """Batches of four processes and two runs: doubled ones, ones with another's sequence, empty and bad ones."""
    sent = []
    for number in range(120):
        if sent and chance.randrange(8) == 0:
            yield chance.choice(sent[-6:])
            continue
        process, fault = chance.randrange(4), chance.randrange(40)
        sequence = chance.randrange(30) if fault < 8 else number
        rows = chance.choice([0, 1, 1, 2, 5]) if model(topic).columns else 1
        batch = any_batch(topic, rows, process_id(process), sequence, seed=process)
        batch.envelope |= {"run": chance.choice(["run"] * 9 + ["other"]), "sent_ns": NOW_NS - number}
        if fault == 10:
            batch.envelope["world_size"] = -1
        elif fault == 11 and "rank" in batch.envelope:
            batch.envelope["rank"] = -(1 << 31)
        elif fault == 12 and rows > 1 and "start_ns" in batch.columns:
            batch.columns["start_ns"][0] -= 40 * DAY_NS
        elif fault == 13:
            batch.envelope["dropped_before"] = 7
        elif fault == 14 and rows and (column := next((c for c in batch.columns if c.endswith("_ns")), "")):
            batch.columns[column] = batch.columns[column].copy()
            batch.columns[column][-1] = NOW_NS + 3 * DAY_NS
        sent.append(batch)
        yield batch


def cut(topic, chance):
    """Lists of values that are one record each, and the record's headers."""
    left, late = list(batches(topic, chance)), 0
    while left:
        count = chance.randrange(1, 9) if topic in JOINED_BY_AGENTS else 1
        of = [batch for batch in left[:count] if batch.envelope["run"] == left[0].envelope["run"]]
        left = [batch for batch in left[:count] if batch not in of] + left[count:]
        late = chance.randrange(3) == 0
        headers = [write_epoch(5 - late, "source:0")] if topic in DERIVED_TOPICS else [("h", b"v")] * late
        yield [encode(model(topic), batch, header(CODEC.registry.id_of(topic))) for batch in of], headers


def ranges(topic, values, monkeypatch, *, together):
    """Intents, blocks and dispositions of the records, in ranges that are cut after some of them."""
    codec = Codec()
    if not together:
        monkeypatch.setattr(codec, "reads_together", lambda *_: False)
    state = PartitionState(table(topic), 0, "id", 0, opened=True)
    intake = Intake(SinkSettings(), SimpleNamespace(states={(topic, 0): state}), codec, SinkCounts())
    ranges_cut = []
    for offset, (of, headers) in enumerate(values):
        if len(of) == 1:
            value = of[0]
        else:
            value = codec.merge(topic, of)
            assert value is not None
        intake.take(Record(topic, 0, offset, b"key", value, NOW_MS + offset, list(headers), leader_epoch=3))
        if offset % 17 and offset < len(values) - 1:
            continue
        intake.take_waiting()
        for identity in state.identities_to_load():
            state.duplicates.history[identity] = Intervals()
        state.duplicates.contents = {place: StoredBatches() for place in state.contents_to_load()}
        pending = state.cut(10**9, 0.0)
        stored = pending.stored
        block = b""
        if stored:
            rows, block = rows_block(
                pending.table, pending.range.topic_partition, [e.batch for e in stored],
                [e.record.offset for e in stored], [e.record.timestamp_ms for e in stored],
            )  # fmt: skip
            assert rows == sum(e.rows for e in stored)
        conflicts = state.duplicates.conflicts
        count_conflicts(state)
        buried = [(e.record.value, e.record.headers, e.record.part) for e in pending.entries if e.disposition in BAD]
        ranges_cut.append((write_intent(pending.intent), pending.leader_epochs, conflicts, buried))
        ranges_cut.append((ledger_block(pending.range, pending.entries), block, state.next_offset))
        ranges_cut.append([e.disposition for e in pending.entries])
    assert not state.waiting
    assert not state.entries
    return ranges_cut


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("topic", SMALL)
def test_read_together_or_one_by_one_the_same_is_stored(topic, seed, monkeypatch):
    values = list(cut(topic, random.Random(f"{topic}{seed}")))
    wanted = ranges(topic, values, monkeypatch, together=False)
    assert ranges(topic, values, monkeypatch, together=True) == wanted
    became = {disposition for of in wanted[2::3] for disposition in of}
    assert {Disposition.STORED, Disposition.DEAD_LETTER} <= became
    assert Disposition.DUPLICATE in became or table(topic).upsert


def test_records_are_read_at_once_as_long_as_they_are_good(monkeypatch):
    values = [([CODEC.encode(any_batch(Topic.STEP, 1, "p", n)), CODEC.encode(any_batch(Topic.STEP, 1, "q", n))], ())
              for n in range(64)]  # fmt: skip
    exclusive = []
    monkeypatch.setattr("drumline.sinks.ranges.reading.read_all", lambda record, *_: exclusive.append(record) or [])
    ranges(Topic.STEP, values, monkeypatch, together=True)
    assert not exclusive


def test_the_bad_one_of_many_is_read_alone(monkeypatch):
    exclusive, read_all = [], reading_module.read_all
    bad = any_batch(Topic.STEP, 1, "p", 99)
    bad.envelope["world_size"] = -1
    records = [
        Record(Topic.STEP, 0, n, b"k", CODEC.merge(Topic.STEP, [CODEC.encode(of)]), NOW_MS, [])
        for n, of in enumerate([*(any_batch(Topic.STEP, 1, "p", n) for n in range(50)), bad])
    ]
    monkeypatch.setattr(reading_module, "read_all", lambda *of: (exclusive.append(of[0].offset), read_all(*of))[1])
    entries = reading_module.read_together(records, table(Topic.STEP), CODEC)
    assert [[e.disposition for e in of] for of in entries] == [["stored"]] * 50 + [["dead_letter"]]
    assert exclusive == [48, 49, 50], "few others beside it"


@pytest.mark.parametrize("interval", [100, 1])
@pytest.mark.parametrize("is_merged", [False, True])
def test_bad_records_cost_no_more_than_two_further_reads_of_each(is_merged, interval, monkeypatch):
    codec, records, read = Codec(), [], []
    for offset in range(600):
        batch = any_batch(Topic.STEP, 1, "p", offset)
        batch.envelope["world_size"] = 1 if offset % interval else -1
        value = CODEC.encode(batch)
        value = CODEC.merge(Topic.STEP, [value]) if is_merged else value
        records.append(Record(Topic.STEP, 0, offset, b"k", value, NOW_MS, []))
    name = "_read_tables" if is_merged else "_read_batches"
    original, decode = getattr(codec, name), codec.decode
    monkeypatch.setattr(codec, name, lambda topic, of: (read.append(len(of)), original(topic, of))[1])
    monkeypatch.setattr(codec, "decode", lambda *of, **how: (read.append(0), decode(*of, **how))[1])
    entries = reading_module.read_together(records, table(Topic.STEP), codec)
    became = [[entry.disposition for entry in of] for of in entries]
    assert became == [["stored" if offset % interval else "dead_letter"] for offset in range(600)]
    assert sum(size for size in read if size > 1) <= 2 * len(records)
    assert max(read) <= 256, "a flood is found early"
    assert read.count(0) <= len(records) * min(1, 16 / interval)


def test_a_record_that_waits_is_taken_before_one_that_does_not():
    state = PartitionState(table(Topic.STEP), 0, "id", 0, opened=True)
    intake = Intake(SinkSettings(), SimpleNamespace(states={(Topic.STEP, 0): state}), CODEC, SinkCounts())
    good = CODEC.encode(any_batch(Topic.STEP, 1, "p", 0))
    for offset, value in enumerate([good, good, b"garbage", good]):
        intake.take(Record(Topic.STEP, 0, offset, b"k", value, NOW_MS, []))
    assert [entry.record.offset for entry in state.entries] == [0, 1, 2]
    assert (state.next_offset, [record.offset for record in state.waiting]) == (4, [3])
    intake.take(Record(Topic.STEP, 0, 3, b"k", good, NOW_MS, []))
    intake.take_waiting()
    assert [entry.record.offset for entry in state.entries] == [0, 1, 2, 3], "the last one came twice"


def test_no_more_wait_than_memory_allows(monkeypatch):
    value = CODEC.encode(any_batch(Topic.STEP, 1, "p", 0))
    monkeypatch.setattr(intake_module, "MOST_BYTES", 10 * Record(Topic.STEP, 0, 0, b"k", value, NOW_MS, []).memory)
    state = PartitionState(table(Topic.STEP), 0, "id", 0, opened=True)
    intake = Intake(SinkSettings(), SimpleNamespace(states={(Topic.STEP, 0): state}), CODEC, SinkCounts())
    for offset in range(100):
        intake.take(Record(Topic.STEP, 0, offset, b"k", value, NOW_MS, []))
        assert len(state.waiting) <= 10
    assert len(state.entries) == 99


@pytest.mark.parametrize(("key", "headers"), [(1 << 20, [1 << 20]), (5, [16, 16, 64]), (5, [0] * 1_000)])
def test_what_waits_takes_no_more_memory_than_is_meant(key, headers):
    value = CODEC.encode(any_batch(Topic.STEP, 0, "p", 0))
    assert CODEC.reads_together(Topic.STEP, value)
    state = PartitionState(table(Topic.STEP), 0, "id", 0, opened=True)
    intake = Intake(SinkSettings(), SimpleNamespace(states={(Topic.STEP, 0): state}), CODEC, SinkCounts())
    size = max_taken = 0
    tracemalloc.start()
    for offset in range(10_000):
        sent = [(f"h{offset}{n}", bytes(size)) for n, size in enumerate(headers)]
        intake.take(Record(Topic.STEP, 0, offset, bytes(key), bytes(bytearray(value)), NOW_MS + offset, sent))
        if len(state.waiting) < size:
            break
        size, (taken, _) = len(state.waiting), tracemalloc.get_traced_memory()
        max_taken = max(max_taken, taken)
    tracemalloc.stop()
    assert not state.waiting, "all were read before 10,000 came"
    assert max_taken < intake_module.MOST_BYTES + (1 << 20)


def stub_registry():
    """A registry whose client can go away, and its clock; id 77 is none of its own, 5 the schema MERGED, 6 an older
    one of steps, 7 the current one."""
    clock, up = [1_000.0], [True]
    older = json.loads(model(Topic.STEP).text)
    added = [field for field in older["fields"] if "default" in field]
    older["fields"].remove(added[-1])
    texts = {5: model(MERGED).text, 6: json.dumps(older), 7: model(Topic.STEP).text}

    def get_schema(number):
        if not up[0]:
            raise ConnectionError("away")
        if number not in texts:
            raise SchemaRegistryError(404, 40403, "not found")
        return SimpleNamespace(schema_str=texts[number])

    client = SimpleNamespace(get_schema=get_schema)
    return ConfluentRegistry(client, "stub", clock=lambda: clock[0]), clock, up


def of_schema(number):
    """A merged record whose parts name a schema."""
    batches = [CODEC.decode(Topic.STEP, CODEC.encode(any_batch(Topic.STEP, 1, "p", n))) for n in range(2)]
    return header(5) + CODEC.encode(merged_record(model(Topic.STEP), number, batches))[HEADER.size :]


def test_a_record_whose_parts_schema_is_unknown_never_asks_a_registry_that_is_away():
    registry, clock, up = stub_registry()
    state, parked = PartitionState(table(Topic.STEP), 0, "id", 0, opened=True), []
    kafka = SimpleNamespace(states={(Topic.STEP, 0): state}, pause_for_schema=lambda *of: parked.append(of[1].offset))
    intake = Intake(SinkSettings(), kafka, Codec(registry), SinkCounts())
    for offset, number in enumerate([7, 77, 77]):
        intake.take(Record(Topic.STEP, 0, offset, b"k", of_schema(number), NOW_MS, []))
    intake.take(Record(Topic.STEP, 0, 3, b"k", of_schema(7), NOW_MS, []))
    assert [record.offset for record in state.waiting] == [3], "the only one whose schema is known"
    up[0], clock[0] = False, clock[0] + 31
    intake.take_waiting()
    intake.take(Record(Topic.STEP, 0, 4, b"k", of_schema(77), NOW_MS, []))
    became = ["stored"] * 2 + ["dead_letter"] * 2 + ["stored"] * 2
    assert ([entry.disposition for entry in state.entries], parked) == (became, [4])


def test_records_of_an_older_schema_do_not_wait_to_be_read_alone_after_all():
    registry, _, _ = stub_registry()
    codec = Codec(registry)
    assert registry.model_of(7) is model(Topic.STEP)
    assert registry.model_of(6) is not model(Topic.STEP)
    registry.model_of(5)
    assert not codec.reads_together(Topic.STEP, of_schema(6))
    assert codec.reads_together(Topic.STEP, of_schema(7))


def test_records_that_an_intent_lists_and_large_ones_do_not_wait():
    large = CODEC.encode(any_batch(Topic.KERNEL, 3_000, "p", 0))
    assert not CODEC.reads_together(Topic.KERNEL, large)
    assert CODEC.reads_together(Topic.KERNEL, CODEC.encode(any_batch(Topic.KERNEL, 3, "p", 0)))
    assert not CODEC.reads_together(Topic.STEP, None)
    assert not CODEC.reads_together(Topic.STEP, header(4_000_000))


def test_who_signed_each_record_is_checked(monkeypatch):
    topic, secret = Topic.STEP, b"k" * 32
    codec = Codec(guard=TenantGuard({"a": Tenant((secret,), ("job",), ("*",))}))
    records = []
    for offset in range(6):
        value = CODEC.encode(any_batch(topic, 1, "p", offset))
        value = CODEC.merge(topic, [value]) if offset % 2 else value
        headers = signed_headers("a", secret, topic, b"k", value) if offset != 3 else []
        records.append(Record(topic, 0, offset, b"k", value, NOW_MS, headers))
    state = PartitionState(table(topic), 0, "id", 0, opened=True)
    intake = Intake(SinkSettings(), SimpleNamespace(states={(topic, 0): state}), codec, SinkCounts())
    for record in records:
        intake.take(record)
    intake.take_waiting()
    assert [entry.error[0] for entry in state.entries] == ["", "", "", "Unsigned", "", ""]
    assert np.all([entry.record.value is None for entry in state.entries if not entry.error[0]])


@pytest.mark.parametrize("shape", ["alone", "merged"])
def test_rows_about_a_host_of_another_tenant_are_dead_letters(shape):
    topic, secret = Topic.DEVICE, b"k" * 32
    codec = Codec(guard=TenantGuard({"a": Tenant((secret,), ("*",), ("a-*",))}))
    batches = [any_batch(topic, 1, "p", number) for number in range(4)]
    for batch, host in zip(batches, ("a-1", "b-1", "a-2", "a-3"), strict=True):
        batch.envelope["host"] = host
    values = [CODEC.encode(batch) for batch in batches]
    if shape != "alone":
        values = [CODEC.merge(topic, values)]
    state = PartitionState(table(topic), 0, "id", 0, opened=True)
    intake = Intake(SinkSettings(), SimpleNamespace(states={(topic, 0): state}), codec, SinkCounts())
    for offset, value in enumerate(values):
        headers = signed_headers("a", secret, topic, b"k", value)
        intake.take(Record(topic, 0, offset, b"k", value, NOW_MS, headers))
    intake.take_waiting()
    assert [entry.error[0] for entry in state.entries] == ["", "ForeignHost", "", ""]


def test_memory_is_counted_as_parts_and_records_take_it():
    values = [CODEC.encode(any_batch(Topic.STEP, 1, process_id(n), 0)) for n in range(8)]
    whole = CODEC.merge(Topic.STEP, values)
    state = PartitionState(table(Topic.STEP), 0, "id", 0, opened=True)
    intake = Intake(SinkSettings(), SimpleNamespace(states={(Topic.STEP, 0): state}), CODEC, SinkCounts())
    tracemalloc.start()
    for offset in range(500):
        intake.take(Record(Topic.STEP, 0, offset, b"k", bytes(bytearray(whole)), NOW_MS, []))
    intake.take_waiting()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(state.entries) == 4_000
    assert taken < state.memory < 3 * taken
    assert state.memory == sum(entry.memory for entry in state.entries)
    state.duplicates.history = dict.fromkeys(state.identities_to_load(), Intervals())
    state.cut(1, 0.0)
    assert state.memory == sum(entry.memory for entry in state.entries)
    large = CODEC.encode(any_batch(Topic.STEP, 1_000, process_id(9), 0))
    intake.take(Record(Topic.STEP, 0, 500, b"k", large, NOW_MS, []))
    assert state.entries[-1].memory == state.entries[-1].size + OBJECT_BYTES
