"""The question lateness-by-step, on the engine: its answer is exact, and a large job needs little memory."""

from contextlib import closing

import pytest
from support import migrated_database

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.infra.clickhouse.queries import query

pytestmark = pytest.mark.stack
QUESTION = query("lateness-by-step")


def store(client, job, selected):
    command(
        client,
        "INSERT INTO lateness_versions (job, run, communicator, step, rank, lateness_ns, exposed_wait_ns, published) "
        f"SELECT '{job}', 'r1', t.*, now() FROM (SELECT {selected}) AS t",  # what is older than retention goes at once
    )


def test_a_rank_that_is_late_in_two_communicators_is_later_than_any_is_in_one(clean_stack):
    migrated_database.create(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        one_each = (
            "toString(rank % 2), intDiv(number, 4) AS step, number % 4 AS rank, (9 + step % 2) * 1000000, 1000000"
        )
        store(client, "x", f"{one_each} FROM numbers(160)")
        store(client, "x", "c AS communicator, 5, 3, 6000000, 2000000 FROM (SELECT arrayJoin(['a', 'b']) AS c)")
        answer = rows(client, QUESTION.sql, QUESTION.values({"job": "x", "limit": "2"}))
    assert answer == [
        {"step": 5, "latest_rank": 3, "late_ms": 22, "others_wait_ms": 8},
        {"step": 1, "latest_rank": 0, "late_ms": 10, "others_wait_ms": 4},
    ]


def test_a_large_job_needs_little_memory(clean_stack):
    migrated_database.create(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        many = "'c', intDiv(number, 16384) AS step, number % 16384 AS rank, cityHash64(number) % 1000000, 1000"
        store(client, "wide", f"{many} FROM numbers({16_384 * 60})")
        store(client, "wide", "'c', 60, 77, 5000000, 1000")
        answer = client.query(
            QUESTION.sql, QUESTION.values({"job": "wide", "limit": "5"}), settings={"max_memory_usage": 60_000_000}
        )
    assert len(answer.result_rows) == 5
    assert answer.first_row[:3] == (60, 77, 5)
