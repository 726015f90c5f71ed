"""`drumline topics tail` of a record with parts: the rows of each, and what is wrong with one."""

from types import SimpleNamespace

from support.labs.sink import any_batch
from support.tables import merged_record, parts_of

from drumline.infra.kafka.tail import entries
from drumline.schemas.codec import Codec
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

CODEC = Codec()


def message(value):
    return SimpleNamespace(
        partition=lambda: 3, offset=lambda: 7, topic=lambda: Topic.STEP, value=lambda: value, headers=list,
        timestamp=lambda: (0, 0), key=lambda: b"job",
    )  # fmt: skip


def test_a_record_with_parts_shows_the_rows_of_each_and_which_part_is_bad():
    batches = [any_batch(Topic.STEP, rows, f"p{rows}", rows) for rows in (1, 2, 3)]
    batches[1].envelope["world_size"] = -1
    values = [CODEC.encode(batch) for batch in batches]
    record = CODEC.merge(Topic.STEP, values)
    shown = list(entries(CODEC, message(record), {}))
    assert [(row["_part"], row.get("_row")) for row in shown] == [(1, 0), (2, None), (3, 0), (3, 1), (3, 2)]
    assert shown[1]["error"]["reason"] == "out_of_bounds"
    assert [row["_part"] for row in entries(CODEC, message(record), {"process_id": "p3"})] == [2, 3, 3, 3]
    assert ["_part" in row for row in entries(CODEC, message(values[2]), {})] == [False] * 3


def test_a_merged_record_whose_parts_no_producer_encoded_is_one_bad_record():
    parts = [any_batch(Topic.STEP, 2, f"p{number}", number) for number in range(2)]
    parts = [CODEC.decode(Topic.STEP, CODEC.encode(part)) for part in parts]
    record = merged_record(model(Topic.STEP), CODEC.registry.id_of(Topic.STEP), parts)
    table = parts_of(CODEC, Topic.STEP, CODEC.encode(record)).merged
    record.columns["numbers"][table.fields.size + table.layout.line["skipped"] * table.rows] = 1 << 40
    [shown] = entries(CODEC, message(CODEC.encode(record)), {})
    assert shown["error"]["reason"] == "bad_column"
    assert "_part" not in shown
