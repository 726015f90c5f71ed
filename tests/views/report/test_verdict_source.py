"""Verdicts of a run that was evaluated once are read from their table: the rows are those of the view."""

from contextlib import closing

import pytest
from support import migrated_database
from support.stored_job import JOB, START, store

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.views.report import queries
from drumline.views.report.data import find_run, from_table, verdicts_of
from drumline.views.top.data import WINDOW

pytestmark = pytest.mark.stack
SCOPE = {"job": JOB, "run": "r1", "since": f"{START:%F %T}", "until": "2200-01-01"}
BINS = SCOPE | {"first": 0, "width": 10, "ranks": 2, "band": 1}
STATEMENTS = {
    "episodes": (queries.EPISODES, SCOPE),
    "episodes of a rank": (queries.RANK_EPISODES, SCOPE | {"rank": 1}),
    "windows": (queries.WINDOWS, SCOPE),
    "cost": (queries.COST, SCOPE),
    "lateness": (queries.LATENESS, BINS),
    "bands": (queries.BANDS, BINS),
    "newest window": (WINDOW, SCOPE),
}


@pytest.fixture
def client(clean_stack):
    """A job of which each verdict was stored twice, the second time with twice the loss."""
    migrated_database.create(clean_stack)
    store(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as writer:
        again(writer, "")
        yield writer


def again(client, evaluation):
    names = "SELECT groupArray(name) AS names FROM system.columns WHERE table = 'stragglers_versions' AND database = "
    [row] = rows(client, f"{names}currentDatabase() AND default_kind = ''")
    changed = {
        "lost_ns": "2 * lost_ns", "gpu_seconds_lost": "2 * gpu_seconds_lost", "evaluation": f"'{evaluation}'",
        "_offset": "_offset + 100", "published": "now64(3)",
    }  # fmt: skip
    shown = ", ".join(changed.get(name, f"`{name}`") for name in row["names"])
    into = ", ".join(f"`{name}`" for name in row["names"])
    command(client, f"INSERT INTO stragglers_versions ({into}) SELECT {shown} FROM stragglers_versions FINAL")


def test_rows_of_the_table_are_those_of_the_view(client):
    for name, (sql, parameters) in STATEMENTS.items():
        assert "FROM stragglers_versions" in from_table(sql), name
        assert "FROM stragglers " not in from_table(sql), name
        from_view = rows(client, sql, parameters)
        assert from_view, name
        assert rows(client, from_table(sql), parameters) == from_view, name


def test_a_run_that_was_evaluated_again_is_read_in_the_view(client):
    def query(sql, parameters):
        return rows(client, sql, parameters)

    run, _ = find_run(query, JOB, "")
    once = verdicts_of(query, run)(queries.COST, SCOPE)
    again(client, "again/10")
    run, _ = find_run(query, JOB, "")
    [row], [before] = verdicts_of(query, run)(queries.COST, SCOPE), once
    assert row["gpu_seconds"] == 2 * before["gpu_seconds"]  # not their sum
    assert query(from_table(queries.COST), SCOPE) != [row]


def test_windows_are_counted_as_the_view_coverage_has_them(client):
    command(
        client,
        "INSERT INTO stragglers_versions (job, run, rank, first_step, last_step, window_start, window_end, severity, "
        f"published, detail) WITH toDateTime64('{START:%F %T}', 9, 'UTC') AS at SELECT '{JOB}', 'r1', -1, "
        "40 + 10 * number, 49 + 10 * number, at, at, -1, now64(3), "
        "['no_past', 'stalled', 'ranks_missing'][number + 1] FROM numbers(3)",
    )
    [row] = rows(client, queries.WINDOWS, SCOPE)
    [coverage] = rows(client, "SELECT count() AS windows, countIf(evaluated) AS evaluated FROM coverage")
    assert (row["windows"], row["evaluated"], row["reason"]) == (*coverage.values(), "ranks_missing")
    assert row["windows"] == 6
