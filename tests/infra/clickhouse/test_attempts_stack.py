"""Attempts of a run in SQL: one list for all readers, lost time once over all, and alerts of the newest."""

from contextlib import closing

import pytest
from support import migrated_database

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.infra.clickhouse.queries import query
from drumline.views.report.gaps import attempts_text
from drumline.views.report.queries import EPISODES, LABELS
from drumline.views.serve.queries import FLEET_NOW
from drumline.views.top.data import WINDOW

pytestmark = pytest.mark.stack
SCOPE = {"job": "x", "run": "r"}


@pytest.fixture
def db(clean_stack):
    """Attempts of the ranks 1, 3 and 2, each late in windows of 20 steps; the second resumes at step 20."""
    migrated_database.create(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        for number, (late, first, windows) in enumerate(((1, 0, 4), (3, 20, 2), (2, 0, 1))):
            begin = 1_800_000_000 + 1_000 * number
            command(
                client,
                "INSERT INTO stragglers_versions (job, run, attempt_start, evaluation, rank, first_step, last_step, "
                "severity, state, cause, window_start, window_end, published, steps_used, ranks_seen, lost_ns, "
                "lost_share, gpu_seconds_lost, episode_first_step, changed) "
                f"WITH {first} + 20 * intDiv(number, 5) AS step, number % 5 - 1 AS of, of = {late} AS bad "
                f"SELECT 'x', 'r', toDateTime64({begin}, 9), 'w/20', of, step, step + 19, if(bad, 2, 0), "
                f"if(bad, 'warning', 'ok'), if(bad, 'host_stall', 'ok'), toDateTime64({begin} + step, 9), "
                f"toDateTime64({begin} + step + 20, 9), now64(3), 20, 4, bad * 2000000000, bad * 0.1, bad * 6, "
                f"if(bad, {first}, -1), bad FROM numbers({5 * windows})",
            )
            command(
                client,
                "INSERT INTO lateness_versions (job, run, published, attempt_start, communicator, step, rank, "
                f"collectives, lateness_ns) SELECT 'x', 'r', now64(3), toDateTime64({begin} + number % 2, 9), "
                f"concat('c', toString(number % 2)), "
                f"{first} + intDiv(number, 8), intDiv(number, 2) % 4, 1, (intDiv(number, 2) % 4 = {late}) * 5000000 "
                f"FROM numbers({8 * 20})",
            )
        yield client


def test_attempts_are_numbered_in_order_and_lost_time_counts_once(db):
    question = query("attempts")
    stored = rows(db, question.sql, question.values(SCOPE))
    names = ("attempt", "first_step", "last_step", "windows", "ranks", "gpu_seconds_lost", "latest_rank")
    assert [tuple(row[name] for name in names) for row in stored] == [
        (1, 0, 79, 4, 4, 24.0, 1), (2, 20, 59, 2, 4, 12.0, 3), (3, 0, 19, 1, 4, 6.0, 2),
    ]  # fmt: skip
    [run] = rows(db, LABELS, SCOPE)
    assert attempts_text(run, "x") == (
        "Attempt 3 of this run, since 2027-01-15 08:33:20 UTC; before it: attempt 2 (steps 20 to 59), attempt 1 "
        "(steps 0 to 79). Costs are those of all. `drumline sql attempts --job x` has them by attempt."
    )
    cost = query("straggler-cost")
    lost = {row["rank"]: row["gpu_seconds_lost"] for row in rows(db, cost.sql, cost.values(SCOPE))}
    assert lost == {1: 24.0, 3: 12.0, 2: 6.0}


def test_episodes_of_attempts_are_different_ones(db):
    span = {"since": "2020-01-01", "until": "2100-01-01"}
    episodes = rows(db, EPISODES, {**SCOPE, **span})
    assert sorted((row["rank"], row["windows"]) for row in episodes) == [(1, 4), (2, 1), (3, 2)]


def test_what_is_shown_as_now_is_of_the_newest_attempt(db):
    late = [row["rank"] for row in rows(db, WINDOW, SCOPE) if row["severity"] == "warning"]
    assert late == [2]
    [now] = rows(db, FLEET_NOW, {"jobs": ["x"], "runs": ["r"]})
    assert now["now"][0] == 2


def test_a_step_number_of_two_attempts_is_two_steps(db):
    question = query("lateness-by-step")
    stored = rows(db, question.sql, question.values({**SCOPE, "limit": "100"}))
    assert len(stored) == 3 * 20, "also where communicators name the attempt by other processes"
    assert {row["latest_rank"] for row in stored if row["step"] < 20} == {1, 2}
    assert {row["latest_rank"] for row in stored if row["step"] >= 20} == {3}
    assert {row["late_ms"] for row in stored} == {10.0}


def test_an_evaluation_that_names_an_attempt_by_another_process_counts_nothing_twice(db):
    """A rank that reports late, or expired records: a second evaluation sees another process first."""
    command(
        db,
        "INSERT INTO stragglers_versions SELECT * REPLACE (attempt_start - toIntervalMillisecond(20) AS attempt_start, "
        "'new/20' AS evaluation, published + 60 AS published) FROM stragglers_versions",
    )
    cost = query("straggler-cost")
    lost = {row["rank"]: row["gpu_seconds_lost"] for row in rows(db, cost.sql, cost.values(SCOPE))}
    assert lost == {1: 24.0, 3: 12.0, 2: 6.0}
    question = query("attempts")
    stored = rows(db, question.sql, question.values(SCOPE))
    names = ("attempt", "first_step", "last_step", "windows", "gpu_seconds_lost", "latest_rank")
    assert [tuple(row[name] for name in names) for row in stored] == [
        (1, 0, 79, 4, 24.0, 1), (2, 20, 59, 2, 12.0, 3), (3, 0, 19, 1, 6.0, 2),
    ]  # fmt: skip


def test_groups_of_steps_are_of_one_attempt_even_beside_another_run(db):
    """Two attempts of 40 steps each, and a run at the same time whose attempts begin in the middle of them."""
    for number, (run, begin) in enumerate((("r", 1_800_000_000), ("r", 1_800_001_000), ("other", 1_800_000_020))):
        command(
            db,
            "INSERT INTO steps (job, run, rank, step, start, duration_ns, gpu_duration_ns, idle_ns, published) "
            f"SELECT 'x', '{run}', 0, number, toDateTime64({begin} + number, 9), 1000000000, 1000000000, "
            f"{number + 1} * 100000000, now64(3) FROM numbers(40)",
        )
    command(
        db,
        "INSERT INTO stragglers_versions SELECT * REPLACE ('other' AS run, attempt_start + 10 AS attempt_start) "
        "FROM stragglers_versions",
    )
    question = query("gpu-idle")
    stored = rows(db, question.sql, question.values({**SCOPE, "run": "", "since": "2026-01-01", "until": "2100-01-01"}))
    assert [(row["from_step"], row["idle_percent"]) for row in stored] == [
        (0, 30), (20, 30), (0, 10), (20, 10), (0, 20), (20, 20),
    ]  # fmt: skip
