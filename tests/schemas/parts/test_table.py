"""Records of one job that are read together are one table: each of their parts is what it is by itself."""

import numpy as np
import pytest
from support.labs.sink import any_batch
from support.tables import merged_record, open_all, parts_of

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import AHEAD_NS
from drumline.schemas.bounds.merged_check import is_inside
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import HEADER
from drumline.schemas.errors import BadEnvelope
from drumline.schemas.model import model
from drumline.schemas.parts.encoded import encoded
from drumline.schemas.parts.joining import JOINED_BY_AGENTS
from drumline.schemas.topics import Topic

TOPICS = sorted(JOINED_BY_AGENTS)
CODEC = Codec()


def record(topic, rows, host=0):
    """A record of a host whose parts have these numbers of rows; hosts share some texts."""
    values = [
        CODEC.encode(any_batch(topic, count, f"p{host}.{part}", part, seed=host)) for part, count in enumerate(rows)
    ]
    return CODEC.merge(topic, values), values


def read(topic, records):
    return [open_all(CODEC, topic, [value])[0] for value in records]


@pytest.mark.parametrize("hosts", [[(3,)], [(2, 0, 4), (1,)], [(0,), (5, 2), (0, 0), (7,)], [(0, 0), (0,)]])
@pytest.mark.parametrize("topic", TOPICS)
def test_each_part_is_what_it_is_alone(topic, hosts):
    sent = [record(topic, rows, host) for host, rows in enumerate(hosts)]
    together = CODEC.merged_table(topic, read(topic, [value for value, _ in sent]))
    assert (together.sizes, together.rows_of) == ([*map(len, hosts)], [*map(sum, hosts)])
    batches = [CODEC.decode(topic, value) for _, values in sent for value in values]
    assert together.parts == len(batches)
    for part, batch in enumerate(batches):
        now = together.batch(part)
        shared = together.batches()[part]
        assert now.envelope == shared.envelope == batch.envelope
        assert all(shared.columns[name].tolist() == column.tolist() for name, column in now.columns.items())
        assert {name: column.tolist() for name, column in now.columns.items()} == {
            name: column.tolist() for name, column in batch.columns.items()
        }
    assert together.part_of.tolist() == [part for part, batch in enumerate(batches) for _ in range(batch.rows)]
    assert together.ranks.tolist() == [batch.envelope["rank"] for batch in batches for _ in range(batch.rows)]
    assert not together.values.flags.writeable
    assert is_inside(together)
    values = [value for _, parts in sent for value in parts]
    assert encoded(together, values[0][: HEADER.size]) == values


def in_lists(batch):
    return batch.envelope, {name: column.tolist() for name, column in batch.columns.items()}


@pytest.mark.parametrize("kept", [[0], [1, 3, 4], [2, 5], [0, 1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("topic", TOPICS)
def test_some_parts_alone_are_what_they_were_and_keep_no_other_rows(topic, kept):
    rows = [(5, 2), (1, 0, 3), (7,)]
    together = CODEC.merged_table(topic, read(topic, [record(topic, of, host)[0] for host, of in enumerate(rows)]))
    assert together.ends[-1] == len(together.ranks)  # what is kept of all of them
    result = together.only(np.array(kept))
    assert [in_lists(result.batch(part)) for part in range(result.parts)] == [
        in_lists(together.batch(of)) for of in kept
    ]
    counts = [together.batch(of).rows for of in kept]
    assert (result.parts, result.rows, np.diff(result.ends).tolist()) == (len(kept), sum(counts), counts)
    assert result.ranks.tolist() == [
        together.batch(of).envelope["rank"] for of in kept for _ in range(together.batch(of).rows)
    ]
    owners = [array if array.base is None else array.base for array in (result.values, result.fields)]
    assert [owner.size for owner in owners] == [result.values.size, result.fields.size]
    assert not result.values.flags.writeable


def test_texts_that_records_share_are_there_once():
    of_hosts = [record(Topic.PROGRESS, (1, 1), host)[0] for host in range(20)]
    together = CODEC.merged_table(Topic.PROGRESS, read(Topic.PROGRESS, of_hosts))
    assert len(set(together.texts)) == len(together.texts)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda of, table: table.__setitem__((of["rows"], 0), -1),
        lambda of, table: table.__setitem__((of["rows"], 0), 3),
        lambda of, table: table.__setitem__((of["rows"], slice(None)), [1 << 62, 4 - (1 << 62)]),
        lambda of, table: table.__setitem__((of["host"], 1), 40),
        lambda of, table: table.__setitem__((of["host"], 1), -1),
    ],
)
def test_a_record_that_takes_rows_or_texts_of_another_is_no_table(spoil):
    good, _ = record(Topic.STEP, (2, 2))
    schema, number = model(Topic.STEP), CODEC.registry.id_of(Topic.STEP)
    bad = merged_record(schema, number, [CODEC.decode(Topic.STEP, value) for value in record(Topic.STEP, (2, 2), 1)[1]])
    lines = [name for name in schema.envelope if name not in ("job", "run")]
    numbers = bad.columns["numbers"].copy()
    spoil({name: line for line, name in enumerate(lines)}, numbers[: 2 * len(lines)].reshape(len(lines), 2))
    value = CODEC.encode(Batch(bad.topic, bad.envelope, {"numbers": numbers}))
    for records in ([value], [good, value], [value, good]):
        with pytest.raises(BadEnvelope):
            CODEC.merged_table(Topic.STEP, read(Topic.STEP, records))


def test_times_are_compared_with_each_record_s_own():
    value, _ = record(Topic.STEP, (2,))
    together = CODEC.merged_table(Topic.STEP, read(Topic.STEP, [value, value]))
    newest = int(max(together.number("base_time_ns").max(), together.columns["start_ns"].max()))
    late_ms, early_ms = newest // 1_000_000 + 1, (newest - 2 * AHEAD_NS) // 1_000_000
    assert is_inside(together, late_ms, late_ms)
    assert not is_inside(together, late_ms, early_ms)
    assert is_inside(together, late_ms, None)


@pytest.mark.parametrize(("fields", "inside"), [(("communicators",), True), (("communicators", "host"), False)])
def test_a_text_that_is_a_list_of_one_field_is_no_name_in_another(fields, inside):
    value, _ = record(Topic.PROGRESS, (1,))
    joined = open_all(CODEC, Topic.PROGRESS, [value])[0]
    head, numbers = joined.record.envelope, joined.record.columns["numbers"].copy()
    texts = [*head["texts"], str(["a" * 250] * 6).replace("'", '"')]
    lines = CODEC.merged_table(Topic.PROGRESS, [joined]).layout.line
    numbers[[lines[field] for field in fields]] = len(head["texts"])
    spoiled = Batch(joined.record.topic, {**head, "texts": texts}, {"numbers": numbers})
    assert is_inside(CODEC.merged_table(Topic.PROGRESS, [joined._replace(record=spoiled)])) is inside


def test_differences_begin_again_in_each_record():
    sent = [record(Topic.COLLECTIVE, rows, host)[0] for host, rows in enumerate([(0,), (3, 1), (0, 0), (2,), (0,)])]
    together = CODEC.merged_table(Topic.COLLECTIVE, read(Topic.COLLECTIVE, sent))
    batches = [parts_of(CODEC, Topic.COLLECTIVE, value).merged for value in sent]
    assert len(together.layout.delta)
    assert together.values.tolist() == np.concatenate([of.values for of in batches], axis=1).tolist()
