"""Every statement of every dashboard runs on the engine over a recorded job and returns what it declares."""

import gzip
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest
from support.grafana_stack import JOB, RUN, stored

from drumline.infra.grafana.bands import BANDS, WORST
from drumline.infra.grafana.catalog import statements
from drumline.infra.grafana.dashboards.serving import SERVING_BOARD
from drumline.infra.grafana.tokens import sql
from drumline.lab.bench.grafana_macros import ALL_VALUES, PanelRequest, expand
from drumline.schemas.counters import COUNTERS

pytestmark = pytest.mark.stack
STATEMENTS = {statement.id: statement for statement in statements()}
TIMES = re.compile(r"^(Nullable\()?(DateTime|Date)")
NUMBERS = re.compile(r"^(Nullable\()?(U?Int|Float)")
ALLREDUCE = "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernelArgsStorageILm4096EE"
CHOSEN = {"job": JOB, "run": RUN, "rank": "3", "price": "2.5", "host": "node-b", "family": "nccl", "kernel": ALLREDUCE}
CHOSEN |= {"team": "vision", "user": "ada", "label": "tier=a", "run_a": RUN, "run_b": RUN, "currency": "EUR"}
NO_LABELS = dict.fromkeys(("team", "user", "label"), ALL_VALUES)
OPTIONS = {
    "rank": ["0", "1", "2", "3"],
    "host": ["node-a", "node-b"],
    "job": [JOB],
    "run": [RUN],
    "family": ["nccl"],
    "kernel": [ALLREDUCE],
}
#: Lines that a person can tell from each other.
SERIES = 20
DAY_MS = 86_400_000
#: Faults that the recording does not have, and what its GPUs did not report.
EMPTY = {
    "At fault again and again",
    "XIDs",
    "Lost",
    "Restarts",
    "Links of hosts",
    "Faults of links",
    "Rate between ranks over the network",
    "Which link",
    "Dead letters by reason",
    "Kernels of one run only",
    "team",
    "user",
    "Dead letters by topic",
    "Rows dropped by topic",
    "Slowed by heat or a power fault",
    "Uncorrected ECC errors",
    "Silent ranks",
    "Times at which the job stood still",
    "NVLink",
    "Memory temperature",
    "Tensor cores",
    "SMs in use",
    "Memory bandwidth",
    "Cost of collecting",
    "Copies counted without records",  # the recording has records
    "Launches counted without records",
}
#: Counters that came later than the recordings have empty panels too.
RECORDED = json.loads(gzip.decompress((Path(__file__).parents[2] / "data/nvml/h200.json.gz").read_bytes()))["rows"][0]
#: The recording is of a training.
EMPTY |= {panel.title for panel in SERVING_BOARD.panels}
EMPTY |= {counter.line.title for counter in COUNTERS if counter.line and counter.name not in RECORDED}


@pytest.fixture(scope="module")
def db(stack):
    return stored(stack)


def moment(db, statement, all_values):
    """The whole recording; `all_values`: All where that can be chosen, else one value."""
    variables = {
        v.name: ALL_VALUES
        if all_values and v.has_all
        else [CHOSEN[v.name]]
        if v.multi
        else CHOSEN.get(v.name, v.default)
        for v in statement.dashboard.variables
    }
    width = (statement.panel and statement.panel.min_interval) or "1s"
    return PanelRequest(
        int(db.first * 1000) - 1000, int(db.last * 1000) + 12_000,
        {"1s": 1_000, "5s": 5_000, "10s": 10_000, "1m": 60_000}[width], variables, OPTIONS,
    )  # fmt: skip


def series(statement, rows):
    """The lines that Grafana draws: one for each column of numbers and combination of labels."""
    kinds = [of_kind for _, of_kind in statement.query.declared]
    labels = {tuple(value for value, of_kind in zip(row, kinds, strict=True) if of_kind == "s") for row in rows}
    return [(label, number) for label in labels for number in range(kinds.count("n"))]


def kind(text):
    return "t" if TIMES.match(text) else "n" if NUMBERS.match(text) else "s"


@pytest.fixture(scope="module")
def query(db):
    """Ask once what several dashboards share, and what does not depend on what is chosen: a third of all."""
    return cache(db.frame)


@pytest.mark.parametrize("all_values", [True, False], ids=["all", "one"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_statement_runs_and_returns_the_declared_columns(db, query, name, all_values):
    statement = STATEMENTS[name]
    columns, rows = query(expand(statement.sql, moment(db, statement, all_values)))
    if statement.query is None:
        assert len(columns) in (1, 2)
    else:
        assert [(column, kind(text)) for column, text in columns] == statement.query.declared
        if statement.query.format == "timeseries":
            assert columns[0][0] == "time"
            times = [row[0] for row in rows]
            assert times == sorted(times), "Grafana refuses series that are not in order"
            assert len(series(statement, rows)) <= SERIES
    if all_values:
        assert rows or statement.name in EMPTY, "the recording has something to show"


@pytest.fixture(scope="module")
def wide(db):
    """A part of the recorded job with 16,384 ranks, and 40 jobs, all of them the day before."""
    newer = {"revision": "revision + 1"}

    def begin(table, time, seconds):
        return f"{time} < (SELECT min({time}) + INTERVAL {seconds} SECOND FROM {table} WHERE job = '{JOB}')"

    for table, where, changed in (
        ("steps", "step BETWEEN 20 AND 24", {}),
        ("collectives", "step = 20 AND ordinal < 3", {}),
        ("ranks_per_second", begin("ranks_per_second", "second", 4), {}),
        ("device_samples", begin("device_samples", "time", 2), {"gpu_index": "toInt32(n % 8)"}),
        ("processes_versions", "1", {}),
        ("stragglers_versions", "first_step < 40", newer),
        ("memcpy_bandwidth_versions", begin("memcpy_bandwidth_versions", "window_start", 10), newer),
        ("memcpys_per_minute", "1", {}),
    ):
        db.widen(table, "wide", where, **changed)
    for table in ("ranks_per_second", "stragglers_versions"):
        db.widen(table, "", copies=40, job="concat('job ', toString(n))", rank="rank", host="host")
    return db


#: Most rows of a table: it is sorted, and nobody reads more.
TABLE = 2_000


@pytest.mark.parametrize("name", [n for n, s in STATEMENTS.items() if s.kind == "panel" and s.query])
def test_panels_draw_few_lines_and_rows_of_16384_ranks(wide, name):
    statement = STATEMENTS[name]
    at = moment(wide, statement, True)
    jobs = {"job": ["wide"] if at.variables.get("job") == [JOB] else "wide"} if "run" in at.variables else {}
    day_before = {"from_ms": at.from_ms - DAY_MS, "to_ms": at.to_ms - DAY_MS}
    _, rows = wide.run_panel(statement.sql, replace(at, variables={**at.variables, **jobs}, **day_before))
    if statement.query.format == "table":
        assert len(rows) <= TABLE
        return
    lines = {label[0] for label, _ in series(statement, rows) if label}
    assert len(series(statement, rows)) <= SERIES
    if "'lowest of all'" in statement.sql and name != "rank: Lost time by rank" and statement.name not in EMPTY:
        assert {f"{band} of all" for band in BANDS} <= lines, "they show where the others are"
        assert len(lines) == WORST + len(BANDS)


@pytest.mark.parametrize("name", [n for n, s in STATEMENTS.items() if s.kind == "panel"])
def test_a_time_without_data_is_no_error(db, query, name):
    statement = STATEMENTS[name]
    at = moment(db, statement, True)
    before = PanelRequest(at.from_ms - 10**9, at.to_ms - 10**9, at.interval_ms, at.variables, at.options)
    query(expand(statement.sql, before))


def test_the_timelines_tables_look_at_the_whole_range_however_many_kernels_it_has(db):
    """200,000 kernels come before the longest gap, 200 collectives before the longest."""
    start = f"fromUnixTimestamp64Milli({round(db.first * 1000)}) + INTERVAL 1 SECOND"
    db.writer.command(
        "INSERT INTO kernels (job, run, rank, name, start, duration_ns) SELECT 'dense', 'r1', 0, 'k', "
        f"addNanoseconds({start}, number * 2000 + if(number < 200001, 0, 5000000)), 1500 FROM numbers(200002)"
    )
    db.writer.command(
        "INSERT INTO collectives (job, run, rank, step, ordinal, start, duration_ns) SELECT 'dense', 'r1', 0, 0, "
        f"number, {start} + INTERVAL number MILLISECOND, 1000 * number FROM numbers(201)"
    )
    chosen = {**NO_LABELS, "job": "dense", "run": "r1", "rank": "0"}
    at = PanelRequest(int(db.first * 1000), int(db.first * 1000) + 60_000, 1_000, chosen, OPTIONS)
    _, gaps = db.run_panel(STATEMENTS["timeline: Longest gaps"].sql, at)
    assert len(gaps) == 30
    assert [row[1] for row in gaps[:2]] == [5_000_500, 500]
    _, collectives = db.run_panel(STATEMENTS["timeline: Collectives"].sql, at)
    assert len(collectives) == 200
    assert collectives[-1][6] == 200_000


def test_a_job_that_is_over_needs_no_attention_any_more(db):
    """While it is critical it is red on the Fleet dashboard; ten minutes after its end it is history."""
    needs = {
        name: (statement.sql, statement.query.declared)
        for name, statement in STATEMENTS.items()
        if statement.dashboard.uid == "drumline-fleet" and statement.name in ("Jobs", "Late ranks", "Ranks late now")
    }
    assert len(needs) == 3, "a stat and two tables"
    anything = {**NO_LABELS, "job": ALL_VALUES, "host": ALL_VALUES}
    for to_ms, over in ((db.phase("slow_copy")[1] // 10**6, False), (round(db.last * 1000) + 600_000, True)):
        for name, (text, declared) in needs.items():
            _, rows = db.run_panel(text, PanelRequest(int(db.first * 1000) - 1000, to_ms, variables=anything))
            columns = [column for column, _ in declared]
            shown_rows = [dict(zip(columns, row, strict=True)) for row in rows]
            job_rows = [row for row in shown_rows if row.get("job", JOB) == JOB]
            assert job_rows, name
            now = [row["level"] if "level" in row else row["value"] for row in job_rows]
            assert any(now) != over, name
            assert not over or all(row.get("lost_share") is None for row in job_rows if "ranks" in row), (
                "costs nothing now"
            )


def test_a_rank_that_its_job_is_hung_for_is_above_every_verdict_until_the_job_goes_on(db):
    for table in ("processes_versions", "stragglers_versions", "records_per_minute"):
        db.copy(table, "hung job")
    at = round(db.last * 1000)
    columns = "job, run, rank, episode, revision, state, start, time, published, _offset"
    for revision, state, seconds in ((0, "hung", 1), (1, "moving", 20)):
        db.writer.command(
            f"INSERT INTO hangs_versions ({columns}) SELECT 'hung job', '{RUN}', arrayJoin([-1, 2]), 1, {revision}, "
            f"'{state}', fromUnixTimestamp64Milli({at}), fromUnixTimestamp64Milli({at + 1000 * seconds}), now64(3), "
            f"{revision}"
        )

    def level(name, to_ms, **chosen):
        statement = STATEMENTS[name]
        chosen = {**NO_LABELS, "host": ALL_VALUES, "job": "hung%20job", "run": RUN, **chosen}
        _, rows = db.run_panel(statement.sql, PanelRequest(int(db.first * 1000) - 1000, to_ms, 1_000, chosen))
        names = [column for column, _ in statement.query.declared]
        return [row.get("level", row.get("value")) for row in (dict(zip(names, row, strict=True)) for row in rows)]

    hung, over = at + 10_000, at + 30_000
    assert [level("rank: Level", moment, rank="2") for moment in (hung, over)] == [[4], [0]]
    assert level("rank: Level", hung, rank="0") != [4]
    for name in ("job: Level", "fleet: Jobs", "fleet: Late ranks"):
        assert level(name, hung)[0] == 4, name
        assert 4 not in level(name, over), name


#: What ends a literal of Grafana's other formats, is a macro or a list of them, or looks like an encoded name.
NAMES = (
    "\\' OR 1=1 -- ", "\\",
    "it's", '"', "`", "a,b", "{a,b}", "{}", "$__all", "$__timeFilter(start)", "${run}", "$1$&", "%27",
    "a%2Cb", "a+b c", "line\nbreak", "\x00", "\u202e\ufffe", "train-7", "{job:String}", "/* */ ; DROP TABLE kernels",
)  # fmt: skip


def test_variables_choose_the_jobs_and_runs_that_are_shown_whatever_their_names_hold(db):
    yesterday_ms = int(db.first * 1000) - DAY_MS
    minute = datetime.fromtimestamp(yesterday_ms // 1000, UTC)
    rows = [(job, run, "gpu.kernel.v1", minute, 1) for job in NAMES for run in (job, "both")]
    db.writer.insert("records_per_minute", rows, column_names=["job", "run", "topic", "minute", "records"])

    def run(statement, **chosen):
        at = PanelRequest(yesterday_ms - 60_000, yesterday_ms + 60_000, 60_000, {**NO_LABELS, **chosen})
        return db.run_panel(statement, at)[1]

    jobs = {text: value for value, text in run(STATEMENTS["job: job"].sql)}
    assert set(jobs) == set(NAMES)
    shown = sql(
        "SELECT DISTINCT job, run FROM records_per_minute WHERE @minute AND @jobs AND @run ORDER BY run = 'both'"
    )
    for job, value in jobs.items():
        runs = {text: value for value, text in run(STATEMENTS["job: run"].sql, job=value)}
        assert set(runs) == {job, "both"}, "a single choice"
        assert run(shown, job=[value], run=[runs[job]]) == [(job, job)]
        crafted = run(shown, job=[job, "nosuch"], run=ALL_VALUES)  # by hand in a URL
        assert {name for name, _ in crafted} <= {job, *job.strip("{}").split(","), "a,b"}, "never all"
    several = list(jobs)[: len(jobs) // 2]
    assert {job for job, _ in run(shown, job=[jobs[job] for job in several], run=ALL_VALUES)} == set(several)


def test_labels_and_hosts_choose_the_runs_that_the_fleet_shows(db):
    """`drumline run --label team=vision --label user=ada --label tier=a`, and a job without labels."""
    labels = "map('team', 'vision', 'user', 'ada', 'tier', 'a')"
    for table, changed in (("processes_versions", {"labels": labels}), ("records_per_minute", {})):
        db.copy(table, "labelled", **changed)
    first, last = int(db.first * 1000), round(db.last * 1000) + 1_000

    def run(name, **chosen):
        anything = {**NO_LABELS, "job": ALL_VALUES, "host": ALL_VALUES}
        return db.run_panel(STATEMENTS[name].sql, PanelRequest(first, last, 1_000, {**anything, **chosen}))[1]

    team, user, label = ([text for _, text in run(f"fleet: {name}")] for name in ("team", "user", "label"))
    assert (team, user) == (["vision"], ["ada"])
    assert "tier=a" in label
    assert {row[0] for row in run("fleet: Jobs")} >= {JOB, "labelled"}
    for chosen in ({"team": ["vision"]}, {"user": ["ada"]}, {"label": ["tier%3Da"]}, {"team": ["vision", "audio"]}):
        assert {row[0] for row in run("fleet: Jobs", **chosen)} == {"labelled"}
        assert {text for _, text in run("cost: job", **chosen)} == {"labelled"}
    assert run("fleet: Jobs", team=["audio"]) == run("fleet: Jobs", team=["vision"], user=["bob"]) == []
    assert {row[0] for row in run("fleet: Jobs", host=["node-a"])} >= {JOB}
    assert run("fleet: Jobs", host=["nowhere"]) == []


def test_what_collecting_costs_is_a_share_of_a_core_and_problems_come_first(db):
    reported_at = f"fromUnixTimestamp64Milli({round(db.last * 1000)}) AS reported_at"
    cost = (
        "'decoder_s', '50', 'decoder_cpu_s', '5', 'job_thread_cpu_s', '0.25', 'kernels', '1000', 'spool_bytes', '2000'"
    )
    lost = "'records_dropped', '7', 'spool_dropped', '2', 'problem: size', 'records of 9 bytes'"
    on = {"policy": "'on: always'", "published": reported_at, "_offset": "_offset + 1"}
    db.copy("processes_versions", "costly", "rank = 0", collector=f"map({cost}, 'records_dropped', '0')", **on)
    db.copy("processes_versions", "costly", "rank = 1", collector=f"map({cost}, {lost})", **on)
    db.copy("processes_versions", "costly", "rank = 2", collector="map()", **on)
    first, last = int(db.first * 1000), round(db.last * 1000) + 1_000
    at = PanelRequest(first, last, 60_000, {**NO_LABELS, "job": "costly"}, {"job": ["costly"]})
    _, rows = db.run_panel(STATEMENTS["health: Cost of collecting"].sql, at)
    assert [row[1:9] for row in rows] == [
        (1, "on: always", 0.1, 0.005, 2000, 9, "records of 9 bytes", 50.0),
        (0, "on: always", 0.1, 0.005, 2000, 0, "", 50.0),
        (2, "on: always", None, None, None, None, "", None),
    ]
