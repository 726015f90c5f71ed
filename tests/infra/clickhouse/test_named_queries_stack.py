"""Each query of docs/reference/cookbook.md on the engine: as on the page, as either reader, and over two servers."""

import dataclasses
import json
import re
import subprocess
import sys

import cookbook
import pytest
from support import migrated_database
from support.newer_release import BEFORE, FIELD, NAME, newer_migrations
from support.pipeline import Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse import distributed, migrate
from drumline.infra.clickhouse.client import rows
from drumline.infra.clickhouse.queries import queries
from drumline.infra.config.clickhouse_settings import ClickHouseSettings
from drumline.infra.config.local_credentials import local_password, password_file
from drumline.infra.localstack.clickhouse.config import prepare_engine
from drumline.infra.localstack.clickhouse.engine import answers, temporary_engine, wait_until
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings
from drumline.lab.bench.direct_load import JobCopy, load
from drumline.sinks.tables.tables import SEVERITIES
from drumline.views.report.answer_chart import answer_chart
from drumline.views.report.deep_window import EPISODE, deep_window
from drumline.views.report.queries import EPISODES

pytestmark = pytest.mark.stack
#: Queries whose results depend on how often results were sent, on when, or on the engine's files.
VARYING_QUERIES = {"data-quality", "storage", "late-rows", "util-or-busy"}
QUERIES = list(queries().values())


def settings_of(folder, database="gpu"):
    return ephemeral_settings(folder, clickhouse=ClickHouseSettings(retention=cookbook.FOR_EVER, database=database))


def fill(settings):
    client = clickhouse.connect(settings)
    for job, folder in cookbook.JOBS.items():
        load(client, settings, JobCopy(folder, job, "r1"))
    cookbook.add_stacks(settings)
    cookbook.add_links(settings)
    cookbook.add_transfers(settings)
    cookbook.add_launches(settings)
    cookbook.add_stalls(settings)
    cookbook.add_launch_counts(settings)
    cookbook.add_serving(settings)
    cookbook.add_checks(settings)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that has the jobs of the cookbook."""
    settings = settings_of(tmp_path_factory.mktemp("server"))
    with temporary_engine(settings):
        migrated_database.create(settings)
        fill(settings)
        yield settings


def on_the_page(query):
    """(column names, rows) of the query's table in the page."""
    part = cookbook.PAGE.read_text().split(f"### {query.question}\n", 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]
    assert query.sql in part, "run `make docs`"
    lines = [line[2:-2].split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return lines[0], lines[1:]


def without_runs(names, result):
    return [[cell for name, cell in zip(names, row, strict=True) if name != "run"] for row in result]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_the_answer_is_the_pages(query, server):
    names, result = cookbook.asker(server)(query)
    assert result, "no answer"
    assert len(set(names)) == len(names)
    page_names, page_rows = on_the_page(query)
    assert names == page_names
    if query.name not in VARYING_QUERIES:
        assert without_runs(names, result[: cookbook.SHOWN]) == without_runs(names, page_rows)


@pytest.mark.parametrize("query", [query for query in QUERIES if query.chart], ids=lambda query: query.name)
def test_a_chart_of_the_answer_draws_its_columns(query):
    names, shown = on_the_page(query)
    assert set(query.chart.columns) <= set(names)
    assert set(query.chart.measures).isdisjoint(query.chart.labels)
    if not query.chart.over or len(shown) > 1:
        assert answer_chart(query.chart, names, shown) is not None


def test_kernels_of_all_groups_of_steps_add_up_to_the_raw_count(server):
    """CUDA graphs are launched asynchronously: most of their kernels run after their step has ended on the host."""
    kernels = rows(clickhouse.connect(server), "SELECT count() AS n FROM gpu.kernels WHERE job = 'fusion'")[0]["n"]
    for group in (50, 150):
        query = queries()["launches-per-step"]
        grouped = dataclasses.replace(query, example={"job": "fusion", "group": str(group)})
        names, result = cookbook.asker(server)(grouped)
        groups = [dict(zip(names, row, strict=True)) for row in result]
        assert len(groups) == 450 // group
        # the recording does the same in each step of a phase, so rounding takes nothing away
        assert sum(int(row["launches_per_step"]) * group for row in groups) == kernels
        assert all(0 < float(row["busy_percent"]) < 100 for row in groups)


def over_tcp(port, size, busy, network, rate="toInt64(-1)", nic="''"):
    """SQL of what the kernel counted of a connection in a second."""
    ends = f"concat(end.2, ':{port}'), concat(end.3, ':{port}')"
    return f"'', toInt32(-1), 0, toInt32(-1), {size}, {busy}, {network}, {ends}, {rate}, {nic}"


def by_nccl(size, busy):
    """SQL of what NCCL recorded of a communicator of both ranks in a second."""
    return f"'c', end.1, 2, 1 - end.1, {size}, {busy}, {busy}, '', '', toInt64(-1), ''"


def flows_of(server, job, *kinds, host="node-"):
    """Store ten seconds of transfers between ranks 0 and 1, on hosts a and b; return the answer about them."""
    source = "FROM numbers(10) ARRAY JOIN ends AS end ARRAY JOIN ['send', 'receive'] AS way"
    head = f"'{job}', 'r', end.1, concat('{host}', end.2), at, 1000000000, way"
    clickhouse.command(
        clickhouse.connect(server, database=server.clickhouse.database),
        f"""INSERT INTO transfers (job, run, rank, host, start, duration_ns, direction, communicator, comm_rank, ranks,
            peer, bytes, busy_ns, network_ns, local, remote, delivery_rate, nic)
        WITH toStartOfInterval(now(), INTERVAL 10 SECOND) - 60 + number AS at, [(0, 'a', 'b'), (1, 'b', 'a')] AS ends
        {" UNION ALL ".join(f"SELECT {head}, {kind} {source}" for kind in kinds)}""",
    )
    names, result = cookbook.asker(server)(dataclasses.replace(queries()["which-link"], example={"job": job}))
    return [dict(zip(names, row, strict=True)) for row in result]


def test_the_rate_of_ranks_over_tcp_is_what_the_kernel_counted(server):
    busy, network = "if(way = 'send', 500000000, 0)", "if(way = 'send', 400000000, 0)"
    rate = "if(way = 'send' AND end.1 = 1, 700000000, -1)"
    connections = (over_tcp(port, 400_000_000, busy, network, rate) for port in (1, 2))
    flows = flows_of(server, "tcp", *connections, by_nccl(90_000_000, 1_000_000))
    rates = {(int(flow["from_rank"]), int(flow["to_rank"])): float(flow["newest_gb_s"]) for flow in flows}
    assert rates == {(0, 1): 2.0, (1, 0): 2.0}  # two connections: 0.8 GB in 0.4 s, more than their paths' 1.4 GB/s
    assert {flow["communicator"] for flow in flows} == {"tcp"}


def test_what_is_wrong_with_a_link_is_that_of_the_interface_where_it_is_known(server):
    clickhouse.command(
        clickhouse.connect(server, database=server.clickhouse.database),
        """INSERT INTO network_samples (host, device, time, reason, rx_errors)
        SELECT host, device, now() - 30, reason, errors FROM
            values('host String, device String, reason String, errors UInt64', ('nic-a', 'eth0', 'slow', 5),
                ('nic-a', 'eth1', '', 7), ('nic-b', 'eth0', 'errors', 1), ('nic-b', 'eth1', '', 2))""",
    )
    connection = over_tcp(1, 200_000_000, 100_000_000, 100_000_000, nic="if(end.2 = 'a', 'eth1', '')")
    flows = flows_of(server, "nics", connection, host="nic-")
    known = {(of["from_host"], of["from_nic"], of["to_nic"], of["wrong"], int(of["errors"])) for of in flows}
    assert known == {("nic-a", "eth1", "", "errors", 10), ("nic-b", "", "eth1", "errors", 10)}


def test_ranks_over_tcp_that_another_attempt_has_on_other_hosts_are_other_links(server):
    client = clickhouse.connect(server, database=server.clickhouse.database)
    clickhouse.command(
        client,
        """INSERT INTO transfers (job, run, rank, host, start, duration_ns, comm_rank, ranks, peer, direction, bytes,
            busy_ns, network_ns, local, remote, delivery_rate)
        WITH toStartOfInterval(now(), INTERVAL 10 SECOND) - 60 + 20 * attempt AS at, ['b', 'c'][attempt] AS other,
            [(0, 'a', other), (1, other, 'a')] AS ends
        SELECT 'moved', 'r', end.1, concat('moved-', end.2), at, 1000000000, -1, 0, -1, way, 200000000, 100000000,
            100000000 * attempt, concat(end.2, ':1'), concat(end.3, ':1'), -1
        FROM (SELECT arrayJoin([1, 2]) AS attempt) ARRAY JOIN ends AS end ARRAY JOIN ['send', 'receive'] AS way""",
    )
    names, result = cookbook.asker(server)(dataclasses.replace(queries()["which-link"], example={"job": "moved"}))
    flows = [dict(zip(names, row, strict=True)) for row in result]
    known = {(of["from_host"][-1] + of["to_host"][-1], float(of["newest_gb_s"])) for of in flows}
    assert known == {("ab", 2.0), ("ba", 2.0), ("ac", 1.0), ("ca", 1.0)}


def test_little_traffic_over_tcp_hides_no_pair_that_nccl_recorded_on_another_network(server):
    busy, network = "if(way = 'send', 500000000, 0)", "if(way = 'send', 400000000, 0)"
    flows = flows_of(server, "gloo", over_tcp(1, 2_000_000, busy, network), by_nccl(90_000_000, 10_000_000))
    rates = {(flow["communicator"], int(flow["from_rank"])): float(flow["newest_gb_s"]) for flow in flows}
    assert rates == {("c", 0): 9.0, ("c", 1): 9.0, ("tcp", 0): 0.005, ("tcp", 1): 0.005}


def test_the_rate_of_a_link_is_that_of_intervals_whose_bytes_are_known(server):
    query, rates = queries()["network"], {"received_gbits", "sent_gbits"}
    unknown = "SELECT * REPLACE (NULL AS rx_bytes, NULL AS tx_bytes) FROM gpu.network_samples"
    twice = f"WITH network_samples AS (SELECT * FROM gpu.network_samples UNION ALL {unknown}) {query.sql}"
    answers = []
    for sql in (query.sql, twice):
        names, result = cookbook.asker(server)(dataclasses.replace(query, sql=sql))
        answers.append({row[0:2]: [cell for name, cell in zip(names, row, strict=True) if name in rates] for row in
                        map(tuple, result)})  # fmt: skip
    assert answers[0] == answers[1]
    assert ["32", "0"] in answers[0].values()


def test_the_deep_window_of_a_verdict_has_whole_steps_and_only_healthy_peers(server):
    client = clickhouse.connect(server, database="gpu")

    def query(sql, values):
        return rows(client, sql, values)

    [run] = query("SELECT DISTINCT run FROM stragglers WHERE job = 'demo'", {})
    scope = {"job": "demo", "run": run["run"], "since": "2000-01-01 00:00:00", "until": "2100-01-01 00:00:00"}
    episodes = [row for row in query(EPISODES, scope) if row["rank"] >= 0 and row["state"] != "suspect"]
    windows = [deep_window(query, {**scope, **{name: row[name] for name in EPISODE}})
             for row in episodes]  # fmt: skip
    assert len([window for window in windows if window]) >= 3, "the last one ends with the recording"
    for row, window in zip(episodes, windows, strict=True):
        if window:
            assert row["last_step"] >= window.verdict_step >= row["first_step"]
            assert window.last_step >= window.first_step > window.verdict_step
            assert any("gemm" in text for text in window.differences) or len(window.differences) > 2


def test_a_verdict_names_the_rank_the_host_and_the_gpu_that_it_is_about(server):
    def query(sql):
        return rows(clickhouse.connect(server, database="gpu"), sql)

    places = {
        (row["rank"], row["host"], row["gpu_uuid"]) for row in query("SELECT * FROM processes WHERE job = 'demo'")
    }
    assert len(places) == 4
    late = query(
        "SELECT DISTINCT rank, host, gpu_uuid FROM stragglers "
        "WHERE job = 'demo' AND rank >= 0 AND severity >= 'warning' ORDER BY rank"
    )
    assert {(row["rank"], row["host"], row["gpu_uuid"]) for row in late} == places, "each was slowed down once"
    for table in ("stragglers", "lateness"):
        result = query(f"SELECT DISTINCT rank, host, gpu_uuid FROM {table} WHERE job = 'demo' AND rank >= 0")
        assert {(row["rank"], row["host"], row["gpu_uuid"]) for row in result} == places, table
    assert not query("SELECT 1 FROM lateness WHERE rank < 0 LIMIT 1")
    whole = query("SELECT DISTINCT host, gpu_uuid FROM stragglers WHERE rank = -1")
    assert whole == [{"host": "", "gpu_uuid": ""}]


def test_severities_are_labels_that_compare(server):
    client = clickhouse.connect(server, database="gpu")
    counts = {
        row["severity"]: row["n"]
        for row in rows(client, "SELECT severity, count() AS n FROM stragglers GROUP BY severity ORDER BY severity")
    }
    assert list(counts) == [label for label in SEVERITIES if label in counts], "in order, what is not known first"
    assert counts.keys() >= {"ok", "warning", "critical"}
    for condition, labels in (
        ("= 'warning'", {"warning"}),
        (">= 'warning'", {"warning", "critical"}),
        ("< 'ok'", {"insufficient_data"}),
        ("IN ('ok', 'suspect')", {"ok", "suspect"}),
    ):
        [row] = rows(client, f"SELECT count() AS n FROM stragglers WHERE severity {condition}")
        assert row["n"] == sum(counts.get(label, 0) for label in labels), condition


@pytest.mark.parametrize("name", ["jobs", "cost"])
def test_one_job_of_all_can_be_chosen(name, server):
    query = queries()[name]
    names, everything = cookbook.asker(server)(query)
    for chosen, jobs in (({"job": "mild"}, ["mild"]), ({"run": "r1"}, list(cookbook.JOBS)), ({"run": "x"}, [])):
        _, result = cookbook.asker(server)(dataclasses.replace(query, example={**query.example, **chosen}))
        job = names.index("job")
        assert sorted(row[job] for row in result) == sorted(jobs)
        assert all(row in everything for row in result)


def test_the_page_has_nothing_that_is_no_query():
    questions = re.findall(r"^### (.*)$", cookbook.PAGE.read_text(), re.MULTILINE)
    assert questions == [query.question for query in QUERIES]


def test_grafanas_user_may_ask_all_of_it_too(server):
    password = local_password(server, "grafana")
    grafana = server.model_copy(
        update={"clickhouse": server.clickhouse.model_copy(update={"reader": "grafana", "reader_password": password})}
    )
    run_query = cookbook.asker(grafana)
    assert all(run_query(query)[1] for query in QUERIES)


REMOTES = """<remote_servers><both>{shards}</both></remote_servers>
    <max_server_memory_usage>"""
#: What making Distributed tables needs beyond the writer's rights (docs/guide/deploy.md, "Shards").
ENGINES = "<query>GRANT TABLE ENGINE ON Distributed</query><query>GRANT READ, WRITE ON REMOTE</query>"
SHARD = """<shard><replica><host>127.0.0.1</host><port>{port}</port>
    <user>writer</user><password>{password}</password></replica></shard>"""


def distribute(settings):
    """Run the command on a server; what it prints."""
    command = [sys.executable, "-m", "drumline.cli.app", "cluster", "distribute", "both"]
    done = subprocess.run(
        command, env=environment(settings), capture_output=True, text=True, check=False, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two servers, each with the schema, and a database over both; settings of the first, naming that database."""
    servers = [settings_of(tmp_path_factory.mktemp(name)) for name in ("first", "second")]
    shards = "".join(
        SHARD.format(port=s.local.clickhouse_tcp_port, password=local_password(s, "writer").get_secret_value())
        for s in servers
    )
    children = []
    try:
        for settings in servers:
            child = prepare_engine(settings)
            config = settings.local.state / "clickhouse" / "conf" / "config.xml"
            config.write_text(config.read_text().replace("<max_server_memory_usage>", REMOTES.format(shards=shards)))
            users = config.with_name("users.xml")
            users.write_text(
                users.read_text().replace("<query>GRANT CREATE TEMPORARY", f"{ENGINES}<query>GRANT CREATE TEMPORARY")
            )
            child.start(0.0)
            children.append(child)
        for settings in servers:
            assert wait_until(lambda s=settings: answers(s), WAIT_S)
            migrated_database.create(settings)
        for settings in (*servers, servers[0]):
            assert "tables and views of gpu_all over cluster both" in distribute(settings)
        over = servers[0].model_copy(
            update={"clickhouse": servers[0].clickhouse.model_copy(update={"database": "gpu_all"})}
        )
        yield servers, over
    finally:
        for child in children:
            child.end()


@pytest.mark.long
def test_two_servers_pass_the_cookbook(server, two):
    servers, over = two
    fill(over)
    held = [
        rows(clickhouse.connect(s), "SELECT count() AS n, uniqExact(rank) AS ranks FROM gpu.kernels")[0]
        for s in servers
    ]
    assert all(side["n"] > 0 for side in held), "both have some of it"
    single, together = cookbook.asker(server), cookbook.asker(over)
    for query in QUERIES:
        if query.name != "storage":
            names, result = together(query)
            assert (names, sorted(result)) == (single(query)[0], sorted(single(query)[1])), query.name


@pytest.mark.long
def test_an_insert_repeated_over_two_servers_counts_once(two):
    _, over = two
    client = clickhouse.connect(over)
    before = rows(client, "SELECT sum(launches) AS n FROM gpu_all.kernels_per_minute")[0]["n"]
    stored = rows(client, "SELECT count() AS n FROM gpu_all.kernels")[0]["n"]
    load(client, over, JobCopy(cookbook.JOBS["fusion"], "fusion", "r1"))
    assert rows(client, "SELECT sum(launches) AS n FROM gpu_all.kernels_per_minute")[0]["n"] == before == stored


@pytest.mark.long
def test_a_sink_that_is_killed_stores_a_job_over_two_servers_once(two, clean_stack, environment_of, tmp_path):
    servers, over = two
    passwords = {user: local_password(over, user) for user in ("writer", "analyst")}
    database = over.clickhouse.model_copy(
        update={
            "url": over.clickhouse_url,
            "password": passwords["writer"],
            "reader_password": passwords["analyst"],
        }
    )
    settings = clean_stack.model_copy(update={"clickhouse": database})
    variables = {
        **environment_of(settings),
        "DRUMLINE_CLICKHOUSE__PASSWORD_FILE": str(password_file(over, "writer")),
        "DRUMLINE_CLICKHOUSE__READER_PASSWORD_FILE": str(password_file(over, "analyst")),
    }
    pipeline = Pipeline(settings, variables, tmp_path)
    pipeline.drumline("topics", "apply")
    stored, client = "SELECT count() AS n FROM {}.kernels WHERE job = 'shards'", clickhouse.connect(settings)
    with pipeline.running():
        replay = pipeline.start_replay("--speed", "4", "--keep-time", "--job", "shards")
        has_begun = lambda: rows(client, stored.format("gpu_all"))[0]["n"] > 0  # noqa: E731
        assert wait_until(has_begun, WAIT_S), (tmp_path / "sink.log").read_text()[-3000:]
        pipeline.kill("sink")
        summary = json.loads(replay.communicate(timeout=WAIT_S)[0])
        pipeline.wait_stored()
        assert pipeline.audit(summary["run"])["findings"] == []
    held = [rows(clickhouse.connect(s), stored.format("gpu"))[0]["n"] for s in servers]
    assert all(held)
    assert sum(held) == summary["rows"]["gpu.kernel.v1"]


@pytest.mark.long
def test_what_the_next_release_adds_is_over_both_servers_too(two, monkeypatch, tmp_path):
    servers, _ = two
    files = newer_migrations(tmp_path)
    for module in (migrate, distributed):
        monkeypatch.setattr(module, "migrations", lambda: files)
    clients = [clickhouse.connect(settings) for settings in servers]
    for client, settings in zip(clients, servers, strict=True):
        clickhouse.command(client, "INSERT INTO gpu.steps (job, start, duration_ns) VALUES ('next', now(), 2000000000)")
        assert NAME in migrate.migrate(client, settings)
    for client in clients:
        distributed.distribute(client, "gpu", "both", "gpu_all")
    slow = f"SELECT count() AS n, any({FIELD}) AS value FROM gpu_all.slow_steps WHERE job = 'next'"
    counted = "SELECT sum(steps) AS n FROM gpu_all.step_counts WHERE job = 'next'"
    for client in clients:
        assert rows(client, slow) == [{"n": 2, "value": BEFORE}]
        assert rows(client, counted) == [{"n": 2}]
