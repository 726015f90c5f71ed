"""A run that is evaluated again, by other windows or another app id: of each step one evaluation is in force."""

from contextlib import closing

import pytest
from support import migrated_database

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.infra.clickhouse.queries import query

pytestmark = pytest.mark.stack
COST = """SELECT sum(gpu_seconds_lost) AS lost, uniqExact(first_step) AS windows FROM stragglers
WHERE job = 'x' AND rank >= 0"""


@pytest.fixture
def db(clean_stack):
    migrated_database.create(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        yield client


def evaluate(client, evaluation, length, steps, hours_ago=1, offset=0, run="r1", unknown=False):
    """Store windows of `length` steps of 1 s over the range `steps`: two ranks, rank 1 costs 0.1 GPU-s a step.

    `unknown`: no window has enough data.
    """
    command(
        client,
        "INSERT INTO stragglers_versions (job, run, evaluation, rank, first_step, last_step, severity, state, cause, "
        "window_start, window_end, published, steps_used, step_ns, lost_ns, lost_share, gpu_seconds_lost, _offset) "
        f"WITH {steps.start} + {length} * intDiv(number, 3) AS first, number % 3 - 1 AS rank SELECT 'x', '{run}', "
        f"'{evaluation}', rank, first, first + {length - 1}, if(rank = 1, 2, 0), if(rank = 1, 'warning', 'ok'), "
        "if(rank = 1, 'host_stall', 'ok'), toDateTime64(1800000000, 9) + first, "
        f"toDateTime64(1800000000, 9) + first + {length}, now64(3) - INTERVAL {hours_ago} HOUR, {length}, 1000000000, "
        f"if(rank = 1, {length} * 100000000, 0), if(rank = 1, 0.1, 0), if(rank = 1, {length} * 0.1, 0), "
        f"{offset} + number FROM numbers({3 * len(steps) // length})"
        if not unknown
        else "INSERT INTO stragglers_versions (job, run, evaluation, rank, first_step, last_step, severity, published, "
        f"_offset) WITH {steps.start} + {length} * intDiv(number, 3) AS first SELECT 'x', '{run}', '{evaluation}', "
        f"number % 3 - 1, first, first + {length - 1}, -1, now64(3), {offset} + number "
        f"FROM numbers({3 * len(steps) // length})",
    )


def cost(client):
    [row] = rows(client, COST)
    return round(row["lost"], 6), int(row["windows"])


def test_the_newest_evaluation_is_in_force_and_lost_time_counts_once(db):
    evaluate(db, "demo/5", 5, range(80), hours_ago=2)
    assert cost(db) == (8.0, 16)
    evaluate(db, "drumline-streams/20", 20, range(80))
    assert cost(db) == (8.0, 4)
    [row] = rows(db, "SELECT DISTINCT evaluation FROM stragglers WHERE job = 'x'")
    assert row["evaluation"] == "drumline-streams/20"
    question = query("straggler-cost")
    [row] = rows(db, question.sql, question.values({"job": "x"}))
    assert round(row["gpu_seconds_lost"], 6) == 8.0
    assert rows(db, "SELECT count() AS n FROM coverage WHERE job = 'x'") == [{"n": 4}]


def test_the_same_windows_by_another_app_id_count_once_whichever_was_stored_last(db):
    evaluate(db, "new/20", 20, range(80), hours_ago=1, offset=100)
    evaluate(db, "old/20", 20, range(80), hours_ago=2)
    assert cost(db) == (8.0, 4)
    assert [row["evaluation"] for row in rows(db, "SELECT DISTINCT evaluation FROM stragglers")] == ["new/20"]


def test_verdicts_of_steps_that_a_later_evaluation_has_not_reached_stay_in_force(db):
    evaluate(db, "old/20", 20, range(20, 100), hours_ago=2)
    evaluate(db, "new/5", 5, range(40, 60))
    assert cost(db) == (8.0, 7)
    evaluate(db, "new/5", 5, range(60, 100), offset=100)
    assert cost(db) == (8.0, 13)


def test_steps_that_a_later_evaluation_left_out_or_could_not_evaluate_keep_their_verdicts(db):
    evaluate(db, "old/20", 20, range(200), hours_ago=2)
    evaluate(db, "new/20", 20, range(40))
    evaluate(db, "new/20", 20, range(160, 200), offset=100)
    evaluate(db, "new/20", 20, range(80, 120), offset=200, unknown=True)
    assert cost(db) == (20.0, 10)
    counts = "SELECT count() AS n, countIf(severity < 0) AS unknown FROM stragglers"
    assert rows(db, counts) == [{"n": 30, "unknown": 0}]


def test_where_a_later_evaluation_ends_lost_time_is_right_within_half_a_window(db):
    evaluate(db, "old/20", 20, range(200), hours_ago=2)
    evaluate(db, "new/45", 45, range(135))
    assert cost(db) == (19.5, 3 + 3)
    evaluate(db, "new/45", 45, range(135, 180), offset=100)
    assert cost(db) == (20.0, 4 + 1)


def test_rows_without_steps_and_those_of_no_evaluation_stand(db):
    evaluate(db, "", 20, range(80), hours_ago=2)
    command(db, "INSERT INTO stragglers_versions (job, run, rank, first_step, last_step, severity, detail, published) "
                "VALUES ('x', 'r1', -1, -1, -1, -1, 'quarantine', now64(3))")  # fmt: skip
    evaluate(db, "new/20", 20, range(40))
    assert cost(db) == (8.0, 4)
    assert rows(db, "SELECT first_step FROM stragglers WHERE detail = 'quarantine'") == [{"first_step": -1}]


@pytest.mark.parametrize(("first", "last"), [(5, 0), (0, 1 << 62), (-1, -1), (1 << 62, (1 << 62) + 19)])
def test_a_verdict_whose_steps_are_anything_is_stored_and_stands(db, first, last):
    evaluate(db, "new/20", 20, range(40))
    columns = "job, run, evaluation, rank, first_step, last_step, severity, published"
    row = f"'x', 'r1', 'old/20', -1, {first}, {last}, 0, now64(3) - INTERVAL 1 DAY"
    command(db, f"INSERT INTO stragglers_versions ({columns}) VALUES ({row})")
    assert rows(db, "SELECT last_step FROM stragglers WHERE evaluation = 'old/20'") == [{"last_step": last}]


def test_another_run_is_untouched(db):
    evaluate(db, "old/20", 20, range(80), hours_ago=2, run="r0")
    evaluate(db, "new/5", 5, range(80))
    assert rows(db, "SELECT run, uniqExact(first_step) AS n FROM stragglers GROUP BY run ORDER BY run") == [
        {"run": "r0", "n": 4}, {"run": "r1", "n": 16},
    ]  # fmt: skip


def test_a_job_whose_run_has_the_name_of_one_that_was_evaluated_again_keeps_its_verdicts(db):
    evaluate(db, "old/20", 20, range(80), hours_ago=2)
    rest = "* REPLACE ('y' AS job)"
    command(db, f"INSERT INTO stragglers_versions SELECT {rest} FROM (SELECT * FROM stragglers_versions)")
    evaluate(db, "new/5", 5, range(40))
    counts = "SELECT job, uniqExact(first_step) AS n, count() AS c FROM stragglers GROUP BY job ORDER BY job"
    assert rows(db, counts) == [
        {"job": "x", "n": 10, "c": 30}, {"job": "y", "n": 4, "c": 12},
    ]  # fmt: skip
