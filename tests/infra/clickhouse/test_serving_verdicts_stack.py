"""Verdicts about inference engines and costs of adapters, for loads of a fake engine, on the engine of ClickHouse."""

import pytest
from support import migrated_database
from support.fake_engine import Load
from support.serving_rows import iterations

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import rows

pytestmark = [pytest.mark.stack, pytest.mark.long]
#: Job -> load, seconds. A healthy hour has bursts and pauses.
LOADS = {
    "healthy": (Load(per_s=12.0, base_ns=25_000_000, token_ns=40_000, seed=7), 3_600),
    "starved": (Load(host_ns=14_000_000), 150),
    "scheduler": (Load(host_ns=14_000_000), 150),
    "blocked": (Load(per_s=6.0, prompts=(3_000, 9_000), chunked=False, tokens=1 << 20, kv_blocks=40_000), 150),
    "thrashed": (Load(kv_blocks=200, per_s=60.0), 150),
    "adapters": (Load(adapters=("plain", "slow", "other", ""), slow_adapter="slow", per_s=3.0), 150),
}
#: Columns of a load: its scheduler sleeps.
COLUMNS = {"scheduler": {"schedule_ns": 12_000_000}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with migrated_database.served(tmp_path_factory.mktemp("server")) as client:
        for job, (load, seconds) in LOADS.items():
            lines = "\n".join(iterations(load, seconds, job, **COLUMNS.get(job, {})))
            clickhouse.insert_once(client, "iterations", lines.encode(), job, "JSONEachRow")
        yield client


def verdicts(client, job):
    sql = "SELECT DISTINCT cause, detail, severity FROM serving_verdicts WHERE job = {job:String} ORDER BY ALL"
    return [tuple(row.values()) for row in rows(client, sql, {"job": job})]


def test_an_hour_of_a_healthy_load_names_nothing(client):
    assert verdicts(client, "healthy") == []


@pytest.mark.parametrize(
    ("job", "cause", "detail"),
    [
        ("starved", "engine_starved", "between_iterations"),
        ("scheduler", "engine_starved", "scheduler"),
        ("blocked", "prefill_blocks_decode", ""),
        ("thrashed", "kv_thrash", ""),
    ],
)
def test_a_fault_is_named_and_nothing_else(client, job, cause, detail):
    assert verdicts(client, job) == [(cause, detail, "suspect"), (cause, detail, "warning")]


def test_an_adapter_that_computes_twice_as_much_is_first(client):
    costs = rows(client, "SELECT adapter, ratio FROM adapter_costs WHERE job = 'adapters' ORDER BY ns_per_token DESC")
    assert costs[0]["adapter"] == "slow"
    assert costs[0]["ratio"] > 1.5 > 1.3 * max(row["ratio"] for row in costs[1:])
