"""Ranks that a run's world size promises and that never reported, on the engine."""

from contextlib import closing

import pytest
from support import migrated_database

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.infra.clickhouse.coverage import MOST_LISTED, MOST_WORLD
from drumline.views.report.queries import LABELS

pytestmark = pytest.mark.stack


@pytest.fixture
def db(clean_stack):
    migrated_database.create(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        yield client


def store(client, ranks, world, start_s=0):
    """Store processes of ranks that state a world size; a later one has a later start."""
    for rank in ranks:
        command(
            client,
            "INSERT INTO processes_versions (job, run, rank, process_id, world_size, start, published) SELECT "
            f"'x', 'r1', {rank}, '{rank}-{start_s}', {world}, toDateTime64({1_000 + start_s}, 9), now64(3)",
        )


def lacking(client):
    [row] = rows(client, LABELS, {"job": "x", "run": "r1"})
    return row["world"], row["unreported_ranks"], row["unreported"]


def test_ranks_without_a_process_are_listed_and_those_of_no_rank_are_not_counted(db):
    store(db, (0, 1), 3)
    store(db, (-1,), 9, start_s=5)  # a process that has no rank
    assert lacking(db) == (3, 1, [2])
    store(db, (2,), 3)
    assert lacking(db) == (3, 0, [])


def test_a_job_that_shrank_lacks_nothing_and_one_that_grew_lacks_the_new_ranks(db):
    store(db, range(4), 4)
    store(db, range(2), 2, start_s=10)
    assert lacking(db) == (2, 0, [])
    store(db, range(4), 6, start_s=20)
    assert lacking(db) == (6, 2, [4, 5])


@pytest.mark.parametrize(("world", "count"), [(0, 0), (-1, 0), (2**31 - 1, MOST_WORLD - 1)])
def test_a_world_size_that_cannot_be_is_bounded(db, world, count):
    store(db, (0,), world)
    size, lacks, listed = lacking(db)
    assert (size, lacks) == (world, count)
    assert listed == list(range(1, count + 1))[:MOST_LISTED]


def test_a_run_without_processes_lacks_nothing(db):
    assert lacking(db) == (0, 0, [])
