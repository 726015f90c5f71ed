"""`drumline report` and `drumline top` against the engine: every query runs, what is stored arrives."""

import json
from contextlib import closing
from datetime import timedelta
from statistics import median

import pytest
from support import drumline_program, migrated_database
from support.stored_job import JOB, START, store

from drumline.infra.clickhouse import queries
from drumline.infra.clickhouse.client import command, connect, rows
from drumline.views.report import device_queries, loading
from drumline.views.report import queries as report_queries
from drumline.views.report.loading import load
from drumline.views.report.page import page
from drumline.views.report.queries import MOST_EPISODES
from drumline.views.report.text import summary

pytestmark = pytest.mark.stack


@pytest.fixture
def drumline(clean_stack, environment_of):
    migrated_database.create(clean_stack)
    environment = environment_of(clean_stack)

    def run(*args):
        return drumline_program.run(*args, environment=environment)

    return run


@pytest.fixture
def client(drumline, clean_stack):
    """Writes rows, once the tables are there."""
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as writer:
        yield writer


def test_a_report_holds_what_is_stored(drumline, clean_stack, tmp_path):
    store(clean_stack)
    path = tmp_path / "job.html"
    done = drumline("report", "--job", JOB, "-o", str(path), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["path"] == str(path)
    assert answer["summary"] == [
        "Rank 1 (h) cost this job 2.5% of its time: 1.0 GPU-seconds, in steps 20 to 39. Cause: slow copy; its copies "
        "between host and GPU took longer (confidence high)."
    ]
    html = path.read_text()
    assert html.count("<svg") == 5  # of the GPUs' measures only the one that was sampled
    assert "a &lt;b&gt;job&lt;/b&gt;" in html
    assert "40 steps" in html
    assert [*tmp_path.iterdir()] == [path]

    early = drumline(
        "report", "--job", JOB, "-o", str(path), "--until", f"{START + timedelta(seconds=15):%FT%T}", "--json"
    )
    assert json.loads(early.stdout)["summary"] == [
        "No rank held this job back in the 2 windows of steps that could be evaluated."
    ]


def test_a_time_outside_the_run_is_reported_with_that_of_the_run(drumline, clean_stack, tmp_path):
    store(clean_stack)
    day, ran = timedelta(days=1), f"run r1 went from {START:%F %T} to {START + timedelta(seconds=40):%F %T}\n"
    for given in (
        ("--since", f"{START + day:%FT%T}"),
        ("--until", f"{START - day:%FT%T}"),
        ("--since", f"{START - 2 * day:%FT%T}", "--until", f"{START - day:%FT%T}"),
    ):
        done = drumline("report", "--job", JOB, "-o", str(tmp_path / "job.html"), *given)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("drumline report: nothing of this run ")
        assert done.stderr.endswith(ran)
    assert [*tmp_path.iterdir()] == []
    moment = ("--since", f"{START + timedelta(seconds=40):%FT%T}")
    assert drumline("report", "--job", JOB, "-o", str(tmp_path / "job.html"), *moment).returncode == 0


def test_the_report_equals_the_cookbook(drumline, clean_stack):
    store(clean_stack)
    client = connect(clean_stack, reader=True, database=clean_stack.clickhouse.database)

    def query(sql, parameters):
        return rows(client, sql, parameters)

    def cookbook(name):
        named = queries.query(name)
        return query(named.sql, named.values({"job": JOB, "run": "r1"}))

    def same(actual, wanted, *names):
        assert actual
        assert [[round(row[n], 2) if isinstance(row[n], float) else row[n] for n in names] for row in actual] == [
            [round(row[n], 2) if isinstance(row[n], float) else row[n] for n in names] for row in wanted
        ]

    data = load(query, JOB, "", "", "", 0.0)
    kernels = [{**row, "kernel": row["short"]} for row in data.kernels]
    same(kernels, cookbook("top-kernels"), "kernel", "family", "launches", "gpu_s")
    same(data.families, cookbook("kernel-families"), "family", "launches", "gpu_s")
    same(data.memcpys, cookbook("memcpy"), "direction", "source", "target", "copies", "gigabytes")
    costs = [{**row, "gpu_seconds": row["gpu_seconds_lost"]} for row in cookbook("straggler-cost")]
    same(data.cost, costs, "rank", "host", "cause", "gpu_seconds")
    [step] = {(row["p50_ms"], row["p95_ms"]) for row in cookbook("step-times")}
    assert (data.steps["median_ms"], data.steps["p95_ms"]) == step
    assert sum(row["samples"] for row in data.devices) == sum(row["samples"] for row in cookbook("devices"))
    client.close()


@pytest.mark.usefixtures("drumline")
def test_many_gpus_are_one_lowest_middle_and_highest_line(clean_stack):
    store(clean_stack)
    client = connect(clean_stack, reader=True, database=clean_stack.clickhouse.database)
    span = {"since": f"{START:%F %T}", "until": f"{START + timedelta(seconds=40):%F %T}"}
    scope = {"job": JOB, "run": "r1", **span, "length_ns": 40_000_000_000, "bins": 4}
    of_ranks = rows(client, device_queries.DEVICE_TIMES, scope)
    lines = rows(client, device_queries.DEVICE_SPREAD, scope)
    client.close()
    assert lines
    assert [row["series"] for row in lines[:3]] == ["lowest GPU", "middle GPU", "highest GPU"]
    for measure in ("util", "power_w", "clock_mhz", "celsius"):
        shown = {(row["second"], row["rank"]): row[measure] for row in lines}
        for second in {row["second"] for row in of_ranks}:
            values = [row[measure] for row in of_ranks if row["second"] == second and row[measure] is not None]
            wanted = [min(values), median(values), max(values)] if values else [None] * 3
            assert [shown[second, line] for line in range(3)] == pytest.approx(wanted)


@pytest.mark.usefixtures("drumline")
def test_a_run_with_many_steps_and_gpu_samples_is_read_from_rollups_to_the_same(clean_stack, monkeypatch):
    """Quantiles within their 1 %; the steps of a second, here one, share a bin, and the samples of a minute."""
    store(clean_stack)
    client = connect(clean_stack, database=clean_stack.clickhouse.database)
    at = f"toDateTime64('{START + timedelta(seconds=40):%F %T}', 9, 'UTC')"
    command(
        client,
        "INSERT INTO steps (job, run, rank, step, start, duration_ns, gpu_start, gpu_duration_ns, skipped) SELECT "
        f"'{JOB}', 'r1', arrayJoin(range(4)) AS rank, 40 + number, {at} + number, 1000000000, {at}, "
        "(300 + 10 * number + rank) * 1000000, number = 7 FROM numbers(40)",
    )
    command(
        client,
        "INSERT INTO processes_versions (job, run, rank, process_id, published) SELECT "
        f"'{JOB}', 'r1', 100 + number, toString(100 + number), {at} FROM numbers(4000)",  # their hosts recorded nothing
    )
    sample = "rank, host, gpu_index, time, util_gpu, power_mw, sm_clock, temperature"
    command(
        client,
        f"INSERT INTO device_samples (job, run, {sample}) SELECT '{JOB}', 'r1', number % 12, 'h', number % 12, "
        f"toDateTime64('{START:%F %T}', 9, 'UTC') + intDiv(number, 12), number % 100, 1000 * number, 1000 + number, "
        "number % 70 FROM numbers(480)",
    )
    read = []

    def query(sql, parameters):
        read.append(sql)
        return rows(client, sql, parameters)

    until = f"{START + timedelta(seconds=80):%F %T}"
    one_by_one = load(query, JOB, "", "", until, 0.0)
    rollups = (report_queries.SECONDS_EXTENT, report_queries.SECONDS, device_queries.DEVICE_MINUTES)
    assert not {*rollups} & {*read}
    monkeypatch.setattr(loading, "MOST_STEPS", 0)
    monkeypatch.setattr(loading, "MOST_SAMPLES", 0)
    rolled = load(query, JOB, "", "", until, 0.0)
    assert {*rollups} <= {*read}
    assert sorted(rolled.steps.pop("steps_from")) == sorted(one_by_one.steps.pop("steps_from"))
    assert rolled.steps == pytest.approx(one_by_one.steps, rel=0.01)
    assert [row["bin"] for row in rolled.step_times] == [step for step in range(80) if step != 47]
    for name, within in (("median_ms", 0.015), ("shortest_ms", 0), ("longest_ms", 0)):  # four ranks: 0.5 % between two
        wanted = [row[name] for row in one_by_one.step_times]
        assert [row[name] for row in rolled.step_times] == pytest.approx(wanted, rel=within)
    minute = rows(
        client,
        "SELECT avg(util_gpu) AS util, avg(power_mw) / 1000 AS power, min(d.sm_clock) AS slowest, "
        "max(d.sm_clock) AS fastest, max(d.temperature) AS hottest FROM device_samples AS d GROUP BY gpu_index",
        {},
    )
    assert [row["second"] for row in rolled.device_times] == [0.0, 0.0, 0.0]
    for line, of_all in ((0, min), (1, median), (2, max)):
        row = rolled.device_times[line]
        clock = "slowest" if line == 0 else "fastest"
        for shown, name in (("util", "util"), ("power_w", "power"), ("clock_mhz", clock), ("celsius", "hottest")):
            values = [gpu[name] for gpu in minute if gpu[name] is not None]
            assert row[shown] == pytest.approx(of_all(values))
    client.close()


@pytest.mark.usefixtures("drumline")
def test_a_large_run_shows_its_latest_ranks_and_the_latest_of_each_band(clean_stack, monkeypatch):
    store(clean_stack)
    client = connect(clean_stack, reader=True, database=clean_stack.clickhouse.database)
    known = {}

    def read():
        known.clear()
        return load(lambda sql, values: rows(client, sql, values), JOB, "", "", "", 0.0,
                    lambda fields, new: known.update({name: fields[name] for name in new}))  # fmt: skip

    small = read()
    assert small.bands == []
    ranks = {row["rank"] for row in small.lateness}
    assert len(ranks) > 1
    monkeypatch.setattr(loading, "RANKS", 0)
    monkeypatch.setattr(loading, "LATEST", 1)
    large = read()
    assert [{name: row[name] for name in ("bin", "rank", "late_ms")} for row in large.bands] == small.lateness
    latest = max(ranks, key=lambda rank: sum(row["late_ms"] for row in small.lateness if row["rank"] == rank))
    assert large.lateness == [row for row in small.lateness if row["rank"] == latest]
    monkeypatch.setattr(loading, "BANDS", 1)
    of_all = {row["bin"]: row["late_ms"] for row in read().bands}
    assert of_all == {step: max(row["late_ms"] for row in small.lateness if row["bin"] == step) for step in of_all}
    assert known.keys() > {"lateness", "bands", "kernels", "devices", "device_times", "episodes", "cost", "records"}
    assert all(known[name] == getattr(read(), name) for name in ("lateness", "bands", "kernels"))
    client.close()


@pytest.mark.usefixtures("drumline")
def test_gpus_of_few_processes_are_three_lines_where_more_processes_are_not_listed(clean_stack):
    """Eight GPUs a process: the 64 that are listed are those of eight."""
    store(clean_stack)
    client = connect(clean_stack, database=clean_stack.clickhouse.database)
    at = f"toDateTime64('{START:%F %T}', 9, 'UTC')"
    command(
        client,
        "INSERT INTO ledger (topic, published, disposition, job, run, rank, host, rows) SELECT "
        f"'gpu.process.v1', {at}, 'stored', '{JOB}', 'r2', number, 'h' || toString(number), 1 FROM numbers(9)",
    )
    command(
        client,
        "INSERT INTO device_samples (job, run, rank, host, gpu_index, time, util_gpu) SELECT "
        f"'{JOB}', 'r2', number % 9, 'h' || toString(number % 9), intDiv(number, 9), {at}, number FROM numbers(72)",
    )
    data = load(lambda sql, values: rows(client, sql, values), JOB, "r2", "", "", 0.0)
    assert data.ranks == 9
    assert len(data.devices) == 64
    assert [row["series"] for row in data.device_times] == ["lowest GPU", "middle GPU", "highest GPU"]
    assert "The first 64 GPUs by host as numbers" in page(data)
    client.close()


def test_top_shows_what_is_stored(drumline, clean_stack):
    store(clean_stack)
    done = drumline("top", "--once", "--json")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert [(job["job"], job["run"], job["ranks"]) for job in seen["jobs"]] == [(JOB, "r1", 2)]
    assert seen["jobs"][0]["age_s"] > 1800  # its producers ended; that a worker published a result since is no life
    detail = seen["detail"]
    assert [(row["rank"], row["step"], row["step_ms"]) for row in detail["steps"]] == [(0, 39, 1000.0), (1, 39, 1000.0)]
    assert [row["rank"] for row in detail["window"]] == [-1, 1, 0]
    assert [detail["window"][1][name] for name in ("rank", "state", "late_ms")] == [1, "warning", 60.0]
    [verdict] = detail["verdicts"]
    assert [verdict[name] for name in ("rank", "first_step", "last_step", "state")] == [1, 20, 39, "warning"]


def test_top_has_the_window_of_a_job_whose_late_ranks_are_more_than_it_reads(drumline, clean_stack, client):
    store(clean_stack)
    at = f"toDateTime64('{START:%F %T}', 9, 'UTC') + 100"
    command(
        client,
        "INSERT INTO stragglers_versions (job, run, first_step, last_step, window_start, window_end, published, rank, "
        "severity, state, cause, lateness_ns, steps_used) SELECT "
        f"'{JOB}', 'r1', 100, 109, {at}, {at}, {at}, number - 1, 2, 'ok', 'ok', if(number = 0, 0, number + 1000), 10 "
        "FROM numbers(5001)",
    )
    rows = json.loads(drumline("top", "--once", "--json", "--job", JOB).stdout)["detail"]["window"]
    assert [row["rank"] for row in rows] == [-1, *range(4999, 4999 - 4095, -1)]
    assert "steps 100 to 109, the last that could be evaluated" in drumline("top", "--once", "--job", JOB).stdout


def test_explain_names_the_rank_its_cost_and_what_to_do_and_states_which_rank_is_not_late(drumline, clean_stack):
    store(clean_stack)
    answer = json.loads(drumline("explain", JOB, "--json").stdout)
    [verdict] = answer["verdicts"]
    assert [verdict[name] for name in ("rank", "first_step", "last_step", "state")] == [1, 20, 39, "warning"]
    assert verdict["gpu_seconds"] == 1.0
    assert verdict["act"]
    assert answer["labels"] == {"team": "vision", "user": "a&b"}
    assert "; team vision, user a&b" in drumline("explain", JOB).stdout
    assert "rank 0 does not hold this job back, in 4 windows" in drumline("explain", JOB, "--rank", "0").stdout
    wrong = drumline("explain", "nothing")
    assert wrong.returncode == 2
    assert "there are: " in wrong.stderr


def test_a_rank_that_never_reported_and_windows_without_a_verdict_are_named_everywhere(drumline, clean_stack, client):
    store(clean_stack)
    ranks = int(rows(client, f"SELECT uniq(rank) AS ranks FROM processes WHERE job = '{JOB}'")[0]["ranks"])
    at = f"toDateTime64('{START:%F %T}', 9, 'UTC') + 1"
    for sql in (
        f"INSERT INTO processes_versions SELECT * REPLACE ({ranks + 1} AS world_size, _offset + 1 AS _offset) "
        f"FROM processes WHERE job = '{JOB}' AND rank >= 0",
        "INSERT INTO stragglers_versions (job, run, rank, first_step, last_step, severity, detail, window_start, "
        f"window_end, published) SELECT '{JOB}', 'r1', -1, 900, 919, -1, 'ranks_missing', {at}, {at}, {at}",
    ):
        command(client, sql)
    named = f"Rank {ranks} of {ranks + 1} has never reported"
    for command_line in (("explain", JOB), ("top", "--once", "--job", JOB)):
        assert named in " ".join(drumline(*command_line).stdout.split()), command_line
    assert json.loads(drumline("explain", JOB, "--json").stdout)["unreported"] == [ranks]
    healthy = drumline("explain", JOB, "--rank", "0").stdout
    assert "does not hold this job back, in 4 windows of steps; 1 more, in steps 900 to 919, could not" in healthy


def test_a_rank_of_cheap_episodes_beside_many_expensive_ones_is_explained(drumline, clean_stack, client):
    store(clean_stack)
    at = f"toDateTime64('{START:%F %T}', 9, 'UTC')"
    command(
        client,
        "INSERT INTO stragglers_versions (job, run, first_step, last_step, window_start, window_end, published, rank, "
        "severity, state, cause, lost_ns, gpu_seconds_lost, episode_first_step, confidence, evidence_json) SELECT "
        f"'{JOB}', 'r1', 40 + number, 40 + number, {at}, {at}, {at}, number != {MOST_EPISODES}, 3, 'warning', "
        f"'slow_copy', 1000000, if(number = {MOST_EPISODES}, 0.1, 9), 40 + number, 'high', '{{}}' "
        f"FROM numbers({MOST_EPISODES} + 1)",
    )
    [verdict] = json.loads(drumline("explain", JOB, "--rank", "0", "--json").stdout)["verdicts"]
    assert (verdict["rank"], verdict["gpu_seconds"]) == (0, 0.1)
    assert json.loads(drumline("explain", JOB, "--json").stdout)["is_cut"]


def test_an_episode_has_the_cause_that_cost_most_and_its_alarms_level_in_report_and_top(drumline, clean_stack, client):
    """Its most expensive window has another cause, and would be critical if one window were enough."""
    store(clean_stack)
    at = f"toDateTime64('{START:%F %T}', 9, 'UTC') + 50"
    windows = (
        (50, 3, "suspect", "host_stall", "", 350, "low", "dearest"),
        (60, 2, "warning", "slow_compute", "more_work", 150, "high", "wanted"),
        (70, 2, "warning", "slow_compute", "same_work", 180, "high", "other detail"),
        (80, 2, "warning", "slow_compute", "more_work", 140, "high", "cheaper"),
        (90, 1, "warning", "slow_compute", "more_work", 40, "high", "cheapest"),
    )
    for first, severity, state, cause, detail, lost_ms, confidence, evidence in windows:
        command(
            client,
            "INSERT INTO stragglers_versions (job, run, first_step, last_step, window_start, window_end, published, "
            "rank, severity, state, cause, detail, lost_ns, lost_share, confidence, evidence_json, "
            f"gpu_seconds_lost, episode_first_step) SELECT '{JOB}', 'r1', {first}, {first + 9}, {at}, {at}, {at}, 0, "
            f"{severity}, '{state}', '{cause}', '{detail}', {lost_ms} * 1000000, {lost_ms / 1000}, '{confidence}', "
            f"'{evidence}', 0.1, 50",
        )
    names = ("first_step", "last_step", "state", "cause", "detail", "lost_share")
    wanted = [50, 99, "warning", "slow_compute", "more_work", 0.35]
    shown = json.loads(drumline("top", "--once", "--json").stdout)["detail"]["verdicts"]
    assert [[row[name] for name in names] for row in shown if row["rank"] == 0] == [wanted]
    data = load(
        lambda sql, parameters: rows(client, sql, parameters), JOB, "", "", f"{START + timedelta(minutes=5):%F %T}", 0.0
    )
    [episode] = [row for row in data.episodes if row["rank"] == 0]
    assert [episode[name] for name in (*names, "confidence", "evidence")] == [*wanted, "high", "wanted"]
    assert "Cause: slow compute; it had more to compute" in " ".join(summary(data))


def test_a_run_of_which_no_kernel_is_stored_yet_began_with_its_first_record(drumline, clean_stack, client, tmp_path):
    for minute in range(2):
        command(
            client,
            "INSERT INTO ledger (topic, published, disposition, job, run, rank, host, rows) SELECT 'gpu.process.v1', "
            f"toDateTime64('{START + timedelta(minutes=minute):%F %T}', 3, 'UTC'), 'stored', '{JOB}', 'r1', 0, 'h', 1",
        )
    [run] = [json.loads(line) for line in drumline("sql", "jobs", "--json").stdout.splitlines()]
    assert (run["started"], run["seconds"]) == (f"{START:%F %T}.000000000", 60.0)
    assert drumline("report", "--job", JOB, "-o", str(tmp_path / "job.html")).returncode == 0
    store(clean_stack)
    [run] = [json.loads(line) for line in drumline("sql", "jobs", "--json").stdout.splitlines()]
    assert (run["started"], run["seconds"]) == (f"{START:%F %T}.000000000", 40.0)


def test_step_times_of_top_are_those_of_the_steps_that_lateness_is_of(drumline, clean_stack, client):
    store(clean_stack)
    later = f"toDateTime64('{START + timedelta(seconds=40):%F %T}', 9, 'UTC')"
    add = (
        "INSERT INTO steps (job, run, rank, step, start, duration_ns, gpu_start, gpu_duration_ns) SELECT "
        f"'{JOB}', 'r1', number % 2, 40 + number, {later} + number / 2, 500000000, {later}, 500000000 FROM numbers(200)"
    )
    command(client, add)

    def steps():
        rows_of_steps = json.loads(drumline("top", "--once", "--json").stdout)["detail"]["steps"]
        return [(row["rank"], row["step"], row["step_ms"]) for row in rows_of_steps]

    assert steps() == [(0, 238, 1000.0), (1, 239, 1000.0)]
    command(client, "TRUNCATE TABLE stragglers_versions")
    assert steps() == [(0, 238, 500.0), (1, 239, 500.0)], "no window could be evaluated: the last minute"


def test_what_cannot_be_done_is_reported(drumline, tmp_path):
    done = drumline("report", "--job", "none", "-o", str(tmp_path / "x.html"))
    assert (done.returncode, done.stderr) == (2, "drumline report: no job 'none' is stored; nothing is stored yet\n")
    done = drumline("report", "--job", "x", "--since", "noon")
    assert done.returncode == 2
    assert "--since 'noon' is no time" in done.stderr
    assert [*tmp_path.iterdir()] == []
