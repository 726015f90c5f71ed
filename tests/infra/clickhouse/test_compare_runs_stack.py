"""The question compare-runs about runs of few and of many ranks, on the engine."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from support import migrated_database

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.infra.clickhouse.queries import query

pytestmark = pytest.mark.stack
AN_HOUR_AGO = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
START = f"toDateTime64('{AN_HOUR_AGO:%F %T}', 9, 'UTC')"  # what is older than retention goes at once


def store(client, job, ranks):
    """A step a second and rank, with as many launches as its host's number."""
    of_ranks = f"'{job}', 'r1', toInt32(number % {ranks}) AS rank"
    command(
        client,
        "INSERT INTO processes_versions (job, run, rank, process_id, published) "
        f"SELECT {of_ranks}, concat('{job}', toString(rank)), {START} FROM numbers({ranks})",
    )
    command(
        client,
        "INSERT INTO steps (job, run, rank, step, start, gpu_duration_ns, compute_ns, kernels) "
        f"SELECT {of_ranks}, intDiv(number, {ranks}) AS step, {START} + step, 1000, 500, 1 + intDiv(rank, 8) "
        f"FROM numbers({20 * ranks})",
    )
    command(
        client,
        "INSERT INTO ledger (topic, offset, published, disposition, job, run, rank, host, rows, time_min, time_max) "
        f"SELECT 'gpu.step.v1', number, {START}, 'stored', {of_ranks}, 'h', 20, {START}, {START} + 20 "
        f"FROM numbers({ranks})",
    )


def test_a_large_run_is_read_in_part_as_the_answer_states_and_a_small_one_whole(clean_stack):
    migrated_database.create(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        store(client, "large", 4_096)
        store(client, "small", 512)
        question = query("compare-runs")
        [row] = rows(client, question.sql, question.values({"job": "large", "other": "small"}))
        hosts = "SELECT avg(1 + number) AS launches, count() AS hosts FROM numbers(512)"
        [read] = rows(client, f"{hosts} WHERE cityHash64(toInt32(number)) % 1024 < 128")
        assert 40 < read["hosts"] < 90, "about 512 ranks"
        assert row["a_launches_per_step"] == pytest.approx(read["launches"], abs=0.1)
        assert row["b_launches_per_step"] == pytest.approx(32.5)
        assert (row["a_busy_percent"], row["b_busy_percent"]) == (50, 50)
        assert (row["a_ranks_percent"], row["b_ranks_percent"]) == (12.5, 100)
