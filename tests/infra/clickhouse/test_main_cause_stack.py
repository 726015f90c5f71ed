"""The cause of a rank in many windows is one, whichever page or dashboard names it."""

from contextlib import closing

import pytest
from support import migrated_database

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.infra.clickhouse.main_cause import main_cause
from drumline.infra.grafana.catalog import statements
from drumline.views.report import queries as report_queries
from drumline.views.serve import queries

pytestmark = pytest.mark.stack
#: Windows of one episode: (cause, detail, lost ms). The last and the costliest one are not of the cause that cost most.
WINDOWS = (
    ("slow_compute", "more_work", 40), ("slow_compute", "same_work", 35), ("slow_compute", "more_work", 10),
    ("host_stall", "disk", 60), ("slow_copy", "pageable", 5),
)  # fmt: skip


@pytest.fixture
def db(clean_stack):
    migrated_database.create(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        for number, (cause, detail, lost_ms) in enumerate(WINDOWS):
            at = f"toDateTime64('2026-01-02 00:00:00', 9, 'UTC') + {number}"
            command(
                client,
                "INSERT INTO stragglers_versions (job, run, rank, first_step, last_step, episode_first_step, severity, "
                f"state, cause, detail, lost_ns, gpu_seconds_lost, window_start, window_end, published) SELECT 'x', "
                f"'r1', 1, {5 * number}, {5 * number + 4}, 0, 2, 'warning', '{cause}', '{detail}', "
                f"{lost_ms * 1_000_000}, {lost_ms / 1000}, {at}, {at} + 1, now64(3)",
            )
        yield client


def test_the_cause_that_cost_most_in_all_windows_then_its_detail(db):
    [row] = rows(db, f"SELECT {main_cause('1')} AS why FROM stragglers AS s WHERE job = 'x'")
    assert tuple(row["why"]) == ("slow_compute", "more_work")
    [row] = rows(db, f"SELECT {main_cause('0')} AS why FROM stragglers AS s WHERE job = 'x'")
    assert tuple(row["why"]) == ("", "")


def test_the_fleet_page_and_the_episodes_of_reports_name_the_same(db):
    [fleet] = rows(db, queries.FLEET_COSTS, {"jobs": ["x"], "runs": ["r1"]})
    [episode] = rows(db, report_queries.episodes("job = 'x'"))
    assert tuple(fleet["costliest"])[2:] == (episode["cause"], episode["detail"]) == ("slow_compute", "more_work")


def test_tables_of_dashboards_that_name_causes_of_ranks_share_the_rule():
    named = [s for s in statements() if s.name in ("Late ranks", "Verdicts of both runs")]
    assert len(named) >= 3
    for statement in named:
        assert "groupArrayIf((toString(s.cause), toString(s.detail), s.lost_ns)" in statement.sql, statement.id
