"""Batches of a live process's rows."""

from dataclasses import replace

import numpy as np
import pytest

from drumline.producers.activity.activity import empty
from drumline.producers.activity.table import Table
from drumline.producers.batching.cuts import MAX_ROWS
from drumline.producers.batching.live import MOST_BYTES, BatchWriter, FeedProgress, split_rows
from drumline.producers.identity import Identity
from drumline.schemas.batch import encode
from drumline.schemas.bounds.check import check, cut
from drumline.schemas.bounds.limits import bound
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

IDENTITY = Identity("job", "run", 0, 0, 1, "host", "GPU-0", "process")
NOW = FeedProgress(10**18, 10**18)
#: Largest record that Kafka's clients accept (infra/kafka/config.py); bytes.
CLIENTS = 1_000_000


def kernels(rows: int, distinct: int, size: int) -> Table:
    """Rows in any order of start, with `distinct` names of `size` bytes."""
    random = np.random.default_rng(5)
    nothing = empty(Topic.KERNEL)
    columns = {name: np.zeros(rows, values.dtype) for name, values in nothing.columns.items()}
    columns["start_ns"] = random.permutation(rows).astype(np.int64) * 1_000 + 10**18
    columns["name"] = random.integers(0, distinct, rows).astype(np.uint32)
    return Table(columns, {"names": [f"{i:06d}".ljust(size, "x") for i in range(distinct)]})


@pytest.mark.parametrize(
    ("rows", "distinct", "size"), [(10_000, 100, 300), (10_000, 400, 4_000), (3, 3, CLIENTS), (1, 1, 9)]
)
def test_no_batch_is_too_large_for_kafka_and_every_row_is_in_one(rows, distinct, size):
    table, sent = kernels(rows, distinct, size), []
    BatchWriter(IDENTITY, lambda topic, key, batch: sent.append(batch)).write(Topic.KERNEL, table, NOW)
    starts = np.concatenate([batch.columns["start_ns"] for batch in sent])
    assert starts.tolist() == sorted(table["start_ns"].tolist())
    names = [name for batch in sent for name in batch.strings("name", "names")]
    order = np.argsort(table["start_ns"])
    expected = [cut(name, bound(Topic.KERNEL, "names").length) for name in table.dictionaries["names"]]
    assert names == [expected[i] for i in table["name"][order].tolist()]
    if size < MOST_BYTES:
        assert max(len(encode(model(Topic.KERNEL), batch)) for batch in sent) < CLIENTS
    least = -(-rows // MAX_ROWS)
    assert len(sent) == least if distinct * size < 100_000 else len(sent) > least or rows == len(sent)


def test_long_stacks_of_many_launches_are_in_batches_that_consumers_take():
    rows, most, sent = 2 * MAX_ROWS, bound(Topic.LAUNCH, "stacks").length, []
    stacks = [f"{i:06d}".ljust(most - 500 * (i % 2), "x") for i in range(50)]
    columns = {column.name: np.zeros(rows, column.dtype) for column in model(Topic.LAUNCH).columns}
    columns["start_ns"] = np.arange(rows, dtype=np.int64) * 1_000 + 10**18
    columns["stack"] = (np.arange(rows) % 50).astype(np.uint32)
    table = Table(columns, {"scopes": [""], "stacks": stacks, "callers": [""]})
    BatchWriter(IDENTITY, lambda topic, key, batch: sent.append(batch)).write(Topic.LAUNCH, table, NOW)
    for batch in sent:
        check(batch)
    assert sum(batch.rows for batch in sent) == rows
    assert len(sent) < rows * most / bound(Topic.LAUNCH, "stacks").total + 2


@pytest.mark.parametrize("outside", [[2], [0, 1, 2, 3, 4]])
def test_rows_outside_their_bounds_are_dropped_and_counted(outside):
    table, sent = kernels(5, 1, 9), []
    durations = table["duration_ns"].copy()
    durations[outside] = 1 << 60
    table = Table({**table.columns, "duration_ns": durations}, table.dictionaries)
    BatchWriter(IDENTITY, lambda topic, key, batch: sent.append(batch)).write(Topic.KERNEL, table, NOW, dropped=7)
    assert [(batch.rows, batch.envelope["dropped_before"]) for batch in sent] == [(5 - len(outside), 7 + len(outside))]


def test_nothing_makes_no_batch():
    sent = []
    BatchWriter(IDENTITY, lambda *batch: sent.append(batch)).write(Topic.KERNEL, kernels(0, 1, 9), NOW)
    assert not sent


def test_what_is_left_of_some_batches_is_cut_as_the_others_were():
    table = kernels(10_000, 400, 4_000)
    parts = split_rows(Topic.KERNEL, table)
    assert len(parts) > 4
    for skipped in range(len(parts)):
        left = table.take(np.concatenate(parts[skipped:]))
        again = split_rows(Topic.KERNEL, left)
        assert [left["start_ns"][part].tolist() for part in again] == [
            table["start_ns"][part].tolist() for part in parts[skipped:]
        ]


@pytest.mark.parametrize(("of_process", "of_rows"), [("nccl", "nccl"), ("cupti", "cupti"), ("replay", "cupti")])
def test_collectives_and_steps_name_what_measured_them(of_process, of_rows):
    sent = []
    writer = BatchWriter(replace(IDENTITY, source=of_process), lambda topic, key, batch: sent.append(batch))
    writer.write(Topic.STEP, empty(Topic.STEP), NOW, dropped=1)
    writer.write(Topic.COLLECTIVE, empty(Topic.COLLECTIVE), NOW, communicator=1, dropped=1)
    writer.write(Topic.KERNEL, empty(Topic.KERNEL), NOW, dropped=1)
    assert [batch.envelope.get("source") for batch in sent] == [of_rows, of_rows, None]
