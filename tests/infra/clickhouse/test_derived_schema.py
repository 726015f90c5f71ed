"""Comments that follow from other places: from the guidance, the table of counters, and a table to its views."""

import pytest

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import rows
from drumline.infra.clickhouse.derived_schema import (
    cause_comments,
    comment_changes,
    device_rollup,
    rollup_comments,
    wanted_comments,
)
from drumline.infra.clickhouse.migrate import migrate
from drumline.infra.guidance.causes import CAUSES
from drumline.schemas.counters import COUNTERS


def test_the_comments_of_verdicts_name_every_cause_and_every_detail_beside_its_cause():
    comments = cause_comments()
    assert comments["cause"].startswith("cause: ok, host_stall, slow_compute, ")
    assert "; slow_compute: more_work, same_work, other_work, shared_gpu, throttled, slow_part; " in comments["detail"]
    for entry in CAUSES:
        assert f" {entry.cause}" in comments["cause"]
        assert entry.detail in comments["detail"]


def test_views_and_feeds_have_the_comments_of_their_table():
    now = {
        "hangs_versions": {"reason": "why", "rank": "r"},
        "hangs_now": {"reason": "old", "rank": "r", "more": "of the view"},
        "steps_per_second": {"steps": "sum"},
        "steps_per_second_from_steps": {"steps": ""},
        "jobs": {"job": "job"},
        "limits_versions": {"value": ""},
        "limits": {"value": "stays"},
    }
    assert wanted_comments(now) == {"hangs_now": {"reason": "why"}, "steps_per_second_from_steps": {"steps": "sum"}}


def test_a_stale_comment_of_a_cause_or_counter_is_replaced_in_table_view_and_feed():
    right = {**cause_comments(), "job": "job name"}
    now = {
        "stragglers_versions": {**right, "detail": "finer cause; host_stall: disk"},
        "stragglers": right,
        "devices_per_minute": rollup_comments(),
        "devices_per_minute_from_samples": {**rollup_comments(), "max_xid": "largest"},
    }
    assert wanted_comments(now) == {
        "stragglers_versions": {"detail": right["detail"]},
        "devices_per_minute_from_samples": {"max_xid": rollup_comments()["max_xid"]},
    }


@pytest.mark.stack
def test_a_migrated_database_has_columns_and_comments_of_every_counter(clean_stack):
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    migrate(client, clean_stack)
    assert comment_changes(client, database) == []
    described = rows(client, f"SELECT table, name, comment FROM system.columns WHERE database = '{database}'")
    comments = {(row["table"], row["name"]): row["comment"] for row in described}
    assert {c.name: comments["device_samples", c.name] for c in COUNTERS} == {c.name: c.comment for c in COUNTERS}
    for table in ("devices_per_minute", "devices_per_minute_from_samples"):
        assert {name: comments[table, name] for name in rollup_comments()} == rollup_comments()
    assert comments["stragglers", "detail"] == cause_comments()["detail"]


@pytest.mark.stack
def test_the_rollup_is_filled_by_the_query_of_the_table(clean_stack):
    """The query of the table of counters changes no column and no type of what the migrations made."""
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    migrate(client, clean_stack)
    feed = f"{database}.devices_per_minute_from_samples"
    before = {row["name"]: row["type"] for row in rows(client, f"DESCRIBE TABLE {feed}")}
    query = device_rollup().replace("{database}", database)
    client.command(f"ALTER TABLE {feed} MODIFY QUERY {query}")
    assert {row["name"]: row["type"] for row in rows(client, f"DESCRIBE TABLE {feed}")} == before
    assert len(comment_changes(client, database)) == 1, "the change drops the feed's comments"
