"""Records become range entries: bounded by the contract, except where an intent of another version counts them."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.labs.sink import NOW_NS, any_batch
from support.tables import parts_of

from drumline.infra.config.settings import SinkSettings
from drumline.schemas.batch import Batch, decode, encode
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import HEADER, header
from drumline.schemas.errors import RegistryUnavailable
from drumline.schemas.model import model
from drumline.schemas.parts.joining import position
from drumline.schemas.parts.merged import MERGED
from drumline.schemas.tenants import SIGNATURE_HEADER, Tenant, TenantGuard
from drumline.schemas.topics import Topic
from drumline.sinks.intake import Intake
from drumline.sinks.ranges.disposition import Disposition, Record
from drumline.sinks.ranges.intent import Intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.tables.blocks import DAY_NS
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts

CODEC = Codec()
NOW_MS = 1_795_000_000_000
NOW = NOW_MS * 1_000_000
#: When Kafka takes joined records, behind the times of `any_batch`.
JOINED_MS = NOW_NS // 1_000_000 + 60_000


def record(offset, topic=Topic.KERNEL, start=NOW, rows=1, **envelope):
    dictionaries = {name: ["a"] for name in model(topic).dictionaries}
    columns = {"start_ns": np.full(rows, start)} if topic == Topic.KERNEL else {}
    batch = Batch(topic, {"rows": rows, "process_id": "p", "sequence": offset, **dictionaries, **envelope}, columns)
    value = encode(model(topic), batch, header(CODEC.registry.id_of(topic)))
    return Record(topic, 0, offset, b"p", value, NOW_MS, [])


def taken(*records, intent=None, codec=CODEC):
    topic = records[0].topic
    state = PartitionState(table(topic), 0, "id", 0, opened=True, intent=intent)
    kafka = SimpleNamespace(states={(topic, 0): state})
    intake = Intake(SinkSettings(), kafka, codec, SinkCounts())
    for item in records:
        intake.take(item)
    intake.take_waiting()
    return state


@pytest.mark.parametrize(
    ("hostile", "field"),
    [
        (record(0, names=["k" * 1_000_000]), "gpu.kernel.v1.names"),
        (record(0, names=["k" * 10_000_000]), "gpu.kernel.v1"),
        (record(0, start=NOW + 31 * DAY_NS), "gpu.kernel.v1.start_ns"),
        (record(0, start=NOW - 1_826 * DAY_NS), "gpu.kernel.v1.start_ns"),
        (record(0, Topic.STRAGGLER, rows=120, evidence=["{" * 8_000_000]), "gpu.straggler.v1.evidence"),
    ],
)
def test_a_record_outside_its_bounds_is_a_dead_letter_that_names_the_field(hostile, field):
    (entry,) = taken(hostile).entries
    assert entry.disposition is Disposition.DEAD_LETTER
    assert entry.error[0] == "OutOfBounds"
    assert entry.error[1].startswith(f"{field}: ")
    assert entry.batch is None


def test_a_range_that_a_version_without_bounds_has_cut_is_rebuilt_as_it_was():
    """Offsets 1 and 2 are outside; the intent counts 1 as stored. Offset 3 lies behind the range."""
    intent = Intent(OffsetRange("id", 0, 0, 2), 3, 2, dead_letters=frozenset({position(2, 0)}), published_ms=NOW_MS)
    state = taken(record(0), *(record(offset, names=["k" * 100_000]) for offset in (1, 2, 3)), intent=intent)
    pending = state.cut(1, 0.0)
    assert pending.intent == intent
    assert [entry.disposition for entry in pending.entries] == ["stored", "stored", "dead_letter"]
    assert pending.entries[2].error[0] == "OutOfBounds"
    assert [entry.disposition for entry in state.entries] == ["dead_letter"]


def single(value):
    return Record(Topic.STEP, 0, 0, b"job", value, JOINED_MS, [])


def merged(*values, headers=()):
    return Record(Topic.STEP, 0, 0, b"job", CODEC.merge(Topic.STEP, values), JOINED_MS, list(headers))


def step(sequence, **envelope):
    batch = any_batch(Topic.STEP, 2, "p", sequence)
    batch.envelope.update(envelope)
    return CODEC.encode(batch)


@pytest.mark.parametrize("bad", [{}, {"world_size": -1}])
def test_merged_parts_are_entries_as_records_alone_are(bad, monkeypatch):
    values = step(0), step(1, **bad), step(2)
    wanted = [entry for value in values for entry in taken(single(value)).entries]
    decoded, decode = [], CODEC.decode
    monkeypatch.setattr(CODEC, "decode", lambda *of, **how: (decoded.append(of), decode(*of, **how))[1])
    entries = taken(merged(*values)).entries
    assert len(decoded) == (3 if bad else 0)
    assert [entry.record.part for entry in entries] == [1, 2, 3]
    for entry, other in zip(entries, wanted, strict=True):
        assert (entry.record.value, entry.size, entry.error) == (other.record.value, other.size, other.error)
        assert (entry.disposition, entry.rows, entry.content) == (other.disposition, other.rows, other.content)
        assert (entry.time_min, entry.time_max) == (other.time_min, other.time_max)
        if other.batch is not None:
            assert entry.batch.envelope == other.batch.envelope
            for name, column in other.batch.columns.items():
                assert entry.batch.columns[name].tolist() == column.tolist()
    assert [entry.disposition for entry in entries].count("dead_letter") == bool(bad)


def test_a_joined_record_that_an_intent_lists_as_a_dead_letter_stays_one_when_its_tenant_is_known():
    guarded = Codec(guard=TenantGuard({"a": Tenant((b"k" * 32,), ("job",), ("*",))}))
    values = step(0), step(1)
    (before,) = taken(merged(*values), codec=guarded).entries
    assert before.error == ("Unsigned", "gpu.step.v1: no tenant that is known here has signed it")
    intent = Intent(OffsetRange("id", 0, 0, 0), 1, 0, dead_letters=frozenset({position(0, 0)}), published_ms=JOINED_MS)
    pending = taken(merged(*values), intent=intent).cut(1, 0.0)
    assert pending.intent == intent
    assert [entry.error[0] for entry in pending.entries] == ["KnownDeadLetter"]


def test_the_dead_letter_of_a_signed_part_has_the_value_that_was_signed():
    record_ = merged(step(0), step(1, world_size=-1), headers=[(SIGNATURE_HEADER, b"s")])
    whole = record_.value
    good, bad = taken(record_).entries
    assert (good.disposition, good.record.value, good.error) == (Disposition.STORED, None, ("", ""))
    assert (bad.disposition, bad.record.value, bad.record.part) == (Disposition.DEAD_LETTER, whole, 2)


def test_a_merged_record_whose_parts_no_producer_encoded_is_a_dead_letter_while_the_registry_is_down():
    sent = merged(step(0), step(1))
    table_ = parts_of(CODEC, Topic.STEP, sent.value).merged
    numbers = np.concatenate([table_.fields.ravel(), table_.values.ravel()])
    numbers[table_.fields.size + table_.layout.line["skipped"] * table_.rows] = 1 << 40
    record_ = decode(model(MERGED), sent.value, start=HEADER.size)
    sent.value = CODEC.encode(Batch(MERGED, record_.envelope, {"numbers": numbers}))
    state = PartitionState(table(Topic.STEP), 0, "id", 0, opened=True)
    intake = Intake(SinkSettings(), SimpleNamespace(states={(Topic.STEP, 0): state}), CODEC, SinkCounts())
    intake.registry.failed(0.0, 0.0)
    intake.take(sent)
    intake.take_waiting()
    assert [entry.error[0] for entry in state.entries] == ["BadColumn"]


def test_a_record_whose_parts_have_new_schemas_waits_while_the_registry_is_down(monkeypatch):
    state = PartitionState(table(Topic.STEP), 0, "id", 0, opened=True)
    parked, requests, codec = [], [], Codec()
    kafka = SimpleNamespace(states={(Topic.STEP, 0): state}, pause_for_schema=lambda *of: parked.append(of))
    intake = Intake(SinkSettings(), kafka, codec, SinkCounts())
    written = decode(model(MERGED), merged(step(0), step(1)).value, start=HEADER.size)
    written.envelope["schema"] = 4_000_000
    new = CODEC.encode(written)
    known, model_of = codec.registry.in_memory, codec.registry.model_of
    monkeypatch.setattr(codec.registry, "in_memory", lambda number: number != 4_000_000 and known(number))

    def read_model(number):
        if number == 4_000_000:
            requests.append(1)
            raise RegistryUnavailable("away")
        return model_of(number)

    monkeypatch.setattr(codec.registry, "model_of", read_model)
    for attempt in range(3):
        intake.take(single(new))
        intake.registry.at = float("inf")
        assert (len(parked), len(requests)) == (attempt + 1, 1), "none before its time"
