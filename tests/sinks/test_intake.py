"""Records become range entries: bounded by the contract, except where an intent of another version counts them."""

from types import SimpleNamespace

import numpy as np
import pytest

from drumline.infra.config.settings import SinkSettings
from drumline.schemas.batch import Batch, encode
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import header
from drumline.schemas.model import model
from drumline.schemas.parts import position
from drumline.schemas.topics import Topic
from drumline.sinks.intake import Intake
from drumline.sinks.ranges.intent import Intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.record import Disposition, Record
from drumline.sinks.tables.blocks import DAY_NS
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts

CODEC = Codec()
NOW_MS = 1_795_000_000_000
NOW = NOW_MS * 1_000_000


def record(offset, topic=Topic.KERNEL, start=NOW, rows=1, **envelope):
    dictionaries = {name: ["a"] for name in model(topic).dictionaries}
    columns = {"start_ns": np.full(rows, start)} if topic == Topic.KERNEL else {}
    batch = Batch(topic, {"rows": rows, "process_id": "p", "sequence": offset, **dictionaries, **envelope}, columns)
    value = encode(model(topic), batch, header(CODEC.registry.id_of(topic)))
    return Record(topic, 0, offset, b"p", value, NOW_MS, [])


def taken(*records, intent=None):
    topic = records[0].topic
    state = PartitionState(table(topic), 0, "id", 0, opened=True, intent=intent)
    kafka = SimpleNamespace(states={(topic, 0): state})
    intake = Intake(SinkSettings(), kafka, CODEC, SinkCounts())
    for item in records:
        intake.take(item)
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
