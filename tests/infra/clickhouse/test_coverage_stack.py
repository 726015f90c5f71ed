"""Windows of steps that were evaluated, and why others were not: views, and what `drumline top` asks, on the engine."""

from contextlib import closing

import pytest
from support import migrated_database

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.infra.clickhouse.coverage import LEAST_WINDOWS, recent
from drumline.infra.clickhouse.queries import query

pytestmark = pytest.mark.stack
NOW = "now64(9)"


@pytest.fixture
def db(clean_stack):
    migrated_database.create(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        yield client


def store_windows(client, job, details, ago_s=60, rank=-1):
    """Store windows of 20 steps that ended `ago_s` ago: a detail each, "" = evaluated."""
    for number, detail in enumerate(details):
        severity = -1 if detail else 0
        command(
            client,
            "INSERT INTO stragglers_versions (job, run, rank, first_step, last_step, severity, detail, window_start, "
            f"window_end, published) SELECT '{job}', 'r1', {rank}, {20 * number}, {20 * number + 19}, {severity}, "
            f"'{detail}', {NOW} - INTERVAL {ago_s + 1} SECOND, {NOW} - INTERVAL {ago_s} SECOND, now64(3)",
        )


def store_records(client, job, topic, count, minutes=10, ranks=2):
    """Store what the ledger counts of rows that were published each minute."""
    for minute in range(minutes + 1):
        command(
            client,
            "INSERT INTO records_per_minute SELECT "
            f"'{job}', 'r1', '{topic}', toStartOfMinute(now() - INTERVAL {minute} MINUTE), 1, 0, 0, {count}, 0, 100, "
            f"now64(9), now64(9), now64(3) - INTERVAL {minute} MINUTE, "
            "uniqExactIfState(toInt32(number), toUInt8(1)), uniqExactIfState('h', toUInt8(1)) "
            f"FROM numbers({ranks})",
        )


def counted(client, job):
    [row] = rows(client, recent(f"job = '{job}'", NOW))
    return int(row["windows"]), int(row["evaluated"]), row["reason"]


def test_a_window_without_verdicts_has_its_reason_and_what_is_no_window_is_left_out(db):
    store_windows(db, "x", ["", "ranks_missing", "stalled", "silent"])
    store_windows(db, "x", ["no_past"], rank=0)
    assert rows(db, "SELECT first_step, evaluated, reason FROM coverage WHERE job = 'x' ORDER BY first_step") == [
        {"first_step": 0, "evaluated": 1, "reason": ""},
        {"first_step": 20, "evaluated": 0, "reason": "ranks_missing"},
    ]


def test_a_run_has_its_share_and_the_main_reason_of_the_rest(db):
    store_records(db, "x", "gpu.step.v1", 100)
    store_windows(db, "x", ["no_past", "no_past", "no_past", "", "", "", "few_steps_recorded"])
    question = query("coverage")
    assert rows(db, question.sql, question.values({"job": "x"})) == [
        {
            "job": "x",
            "run": "r1",
            "windows": 4,
            "evaluated_windows": 3,
            "evaluated_percent": 75,
            "reason": "few_steps_recorded",
        }
    ]


def test_lately_counts_windows_that_are_new_or_long(db):
    store_records(db, "x", "gpu.step.v1", 100)
    store_windows(db, "x", [""] * 4 + ["no_collectives"] * 2)
    store_windows(db, "y", [""] * 4, ago_s=2000)
    store_records(db, "y", "gpu.step.v1", 1, minutes=1)
    assert counted(db, "x") == (6, 4, "no_collectives")
    assert counted(db, "y") == (0, 0, "")
    length = 2000 // LEAST_WINDOWS
    command(
        db,
        "INSERT INTO stragglers_versions (job, run, rank, first_step, last_step, severity, window_start, window_end, "
        f"published) SELECT 'y', 'r1', -1, 100, 119, 0, {NOW} - INTERVAL {2000 + length} SECOND, "
        f"{NOW} - INTERVAL 1900 SECOND, now64(3)",
    )
    assert counted(db, "y") == (1, 1, "")


@pytest.mark.parametrize(
    ("topics", "minutes", "ranks", "reason"),
    [
        (["gpu.collective.v1"], 10, 2, "no_steps"),
        (["gpu.progress.v1"], 10, 2, "no_steps"),
        (["gpu.collective.v1"], 2, 2, ""),
        (["gpu.collective.v1"], 10, 1, ""),
        (["gpu.kernel.v1"], 10, 2, ""),
        (["gpu.collective.v1", "gpu.step.v1"], 10, 2, "no_verdict"),
        (["gpu.collective.v1", "gpu.step.v1"], 0, 2, ""),
    ],
)
def test_a_job_without_a_window_has_a_reason_once_it_is_no_longer_normal(db, topics, minutes, ranks, reason):
    for topic in topics:
        store_records(db, "x", topic, 100, minutes, ranks)
    assert counted(db, "x") == (0, 0, reason)
