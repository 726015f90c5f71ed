"""A decoded batch equals the encoded one; a batch for which it would not is rejected, naming the field."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from drumline.infra.kafka.tail import to_rows
from drumline.schemas.batch import MAX_ROWS, Batch, encode
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import MAX_BYTES, header
from drumline.schemas.epochs import write_epoch
from drumline.schemas.errors import (
    BadColumn,
    BadEnvelope,
    BadFrame,
    BadRecord,
    OutOfBounds,
    Unencodable,
    UnknownSchema,
    WrongSchema,
)
from drumline.schemas.model import has_schema, model
from drumline.schemas.topics import Topic

CODEC = Codec()
WITH_SCHEMA = [topic for topic in Topic if has_schema(topic)]
KERNEL, FREQUENCY, PROCESS = Topic.KERNEL, Topic.KERNEL_FREQUENCY, Topic.PROCESS


def batch(topic=KERNEL, rows=2, columns=None, **envelope):
    dictionaries = {name: ["a", "b"] for name in model(topic).dictionaries}
    return Batch(topic, {"rows": rows, **dictionaries, **envelope}, columns or {})


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.data())
def test_every_batch_comes_back_as_it_was(data):
    topic = data.draw(st.sampled_from(WITH_SCHEMA))
    record = model(topic)
    rows = data.draw(st.integers(0, 6)) if record.columns else 1
    columns = {}
    for column in record.columns:
        values = arrays(column.dtype, rows)
        columns[column.name] = data.draw(values) if not column.dictionary else np.arange(rows, dtype=column.dtype) % 2
    base = data.draw(st.integers(-(1 << 63), (1 << 63) - 1))
    job = data.draw(st.text())
    back = CODEC.decode(topic, CODEC.encode(batch(topic, rows, columns, base_time_ns=base, job=job)), bounded=False)
    assert (back.rows, back.envelope["job"], back.envelope["base_time_ns"]) == (rows, job, base)
    for name, values in columns.items():
        assert back.columns[name].dtype == values.dtype
        assert back.columns[name].tobytes() == values.tobytes(), name  # NaN payloads too


def test_decoded_columns_are_read_only():
    back = CODEC.decode(KERNEL, CODEC.encode(batch()))
    for name in ("start_ns", "duration_ns"):  # delta, plain
        with pytest.raises(ValueError, match="read-only"):
            back.columns[name][0] = 1


@pytest.mark.parametrize(
    ("topic", "column", "values"),
    [
        (KERNEL, "registers", [1, 70_000]),
        (KERNEL, "registers", [-1, 0]),
        (KERNEL, "duration_ns", np.array([1.0, 2.0])),
        (KERNEL, "duration_ns", [1, 2, 3]),
        (KERNEL, "duration_ns", [[1, 2]]),
        (KERNEL, "duration_ns", ["1", "2"]),
        (KERNEL, "duration_ns", [None, 1]),
        (KERNEL, "start_ns", np.array([0, 1 << 63], "u8")),
        (KERNEL, "name", [0, 2]),
        (FREQUENCY, "p50_ns", np.array([0, (1 << 53) + 1])),
        (KERNEL, "durations", [1, 2]),
    ],
)
def test_columns_that_would_not_round_trip_are_refused(topic, column, values):
    with pytest.raises(Unencodable) as raised:
        CODEC.encode(batch(topic, columns={column: values}))
    assert (raised.value.topic, raised.value.field) == (topic, column)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("job", 3), ("job", "\ud800"), ("job", None), ("rank", 1 << 31), ("rank", 1.5), ("sequence", 1 << 63)],
        *[("rows", -1), ("rows", MAX_ROWS + 1), ("names", "ab"), ("names", ["a", 1]), ("names", None), ("jobs", "x")],
    ],
)
def test_envelopes_that_would_not_round_trip_are_refused(field, value):
    with pytest.raises(Unencodable) as raised:
        CODEC.encode(batch(**{field: value}))
    assert (raised.value.topic, raised.value.field) == (KERNEL, field)


def test_a_heartbeat_needs_nothing_and_a_row_needs_a_name():
    assert CODEC.decode(KERNEL, CODEC.encode(Batch(KERNEL, {}))).rows == 0
    with pytest.raises(Unencodable) as raised:
        CODEC.encode(Batch(KERNEL, {"rows": 1}))  # index 0 into no names
    assert raised.value.field == "name"


def body(**changes):
    """A kernel record with a field replaced by raw Avro, after the batch was encoded."""
    return CODEC.encode(batch(**changes))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, BadFrame),
        (b"", BadFrame),
        (b"\0\0\0\0", BadFrame),
        (b"\1" + body()[1:], BadFrame),
        (bytes(MAX_BYTES + 1), BadFrame),
        (header(4_000_000_000) + body()[5:], UnknownSchema),
        (CODEC.encode(batch(Topic.MEMCPY)), WrongSchema),
        (body() + b"\0", BadEnvelope),
        (body()[:-1], BadEnvelope),
        (body()[:5], BadEnvelope),
        (body(job="abcd").replace(b"abcd", b"\xff\xfe\xfd\xfc"), BadEnvelope),
    ],
)
def test_malformed_values_are_typed_and_name_the_topic(value, kind):
    with pytest.raises(BadRecord) as bad:
        CODEC.decode(KERNEL, value)
    assert type(bad.value) is kind
    assert bad.value.topic == KERNEL


def test_impossible_rows_and_indices_name_their_field():
    short = encode(model(PROCESS), Batch(PROCESS, {"rows": 1}), header(CODEC.registry.id_of(PROCESS)))
    place = next(i for i in range(5, len(short)) if short[i] == 2 and short[i - 1] == 0)
    with pytest.raises(BadEnvelope) as rows:
        CODEC.decode(PROCESS, short[:place] + b"\x04" + short[place + 1 :])
    assert rows.value.field == "rows"
    good = body(columns={"name": np.array([0, 1], "<u4")})
    with pytest.raises(BadColumn) as index:
        CODEC.decode(KERNEL, good.replace(b"\x10\0\0\0\0\1\0\0\0", b"\x10\0\0\0\0\2\0\0\0", 1))
    assert index.value.field == "name"


def test_rows_resolve_dictionaries_and_carry_the_window():
    sent = batch(FREQUENCY, columns={"name": [1, 0], "launches": [5, 6]}, window_start_ns=9, job="j")
    rows = to_rows(CODEC.decode(FREQUENCY, CODEC.encode(sent)))
    assert [(r["job"], r["window_start_ns"], r["name"], r["launches"]) for r in rows] == [
        ("j", 9, "b", 5),
        ("j", 9, "a", 6),
    ]


def test_a_record_without_columns_is_one_row():
    rows = to_rows(CODEC.decode(PROCESS, CODEC.encode(Batch(PROCESS, {"rows": 1, "labels": {"team": "x"}}))))
    assert [row["labels"] for row in rows] == [{"team": "x"}]


def test_a_forged_epoch_of_a_result_is_out_of_bounds():
    """Believed, it would fence the results of its source for ever."""
    now = 1_760_000_000_000
    value = CODEC.encode(batch(FREQUENCY, 0))
    assert CODEC.decode(FREQUENCY, value, now, headers=[write_epoch(now, "s:0")]).rows == 0
    forged = [write_epoch(1 << 62, "s:0")]
    with pytest.raises(OutOfBounds, match=r"drumline\.epoch is more than 24 hours after"):
        CODEC.decode(FREQUENCY, value, now, headers=forged)
    CODEC.decode(FREQUENCY, value, now, headers=forged, bounded=False)  # stored before
