"""Costs of requests in GPU time and energy, for loads of a fake engine, on the engine of ClickHouse."""

import json

import pytest
from support import migrated_database
from support.fake_engine import Load
from support.serving_rows import START_NS, device_samples, iterations, requests

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import rows
from drumline.infra.clickhouse.queries import query

pytestmark = pytest.mark.stack
LOAD, SECONDS = Load(adapters=("", "legal"), per_s=4.0), 150
#: Job -> samples of its GPUs. The power that is sampled is wrong where the energy counter is there.
SAMPLES = {
    "counter": [device_samples(SECONDS, 400_000, "counter", power_mw=1)],
    "power": [device_samples(SECONDS, 400_000, "power", energy_mj=None)],
    "two-gpus": [device_samples(SECONDS, mw, "two-gpus", gpu) for mw, gpu in ((400_000, "GPU-0"), (200_000, "GPU-1"))],
    "two-engines": [
        device_samples(SECONDS, mw, "two-engines", gpu) for mw, gpu in ((500_000, "GPU-0"), (300_000, "GPU-1"))
    ],
    "some-minutes": [device_samples(60, 400_000, "some-minutes")],
    "other-gpu": [device_samples(SECONDS, 400_000, "other-gpu", "GPU-7")],
    "none": [],
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with migrated_database.served(tmp_path_factory.mktemp("server")) as client:
        for job, samples in SAMPLES.items():
            tables = {
                "iterations": list(iterations(LOAD, SECONDS, job)),
                "requests": list(requests(LOAD, SECONDS, job)),
                "device_samples": [line for lines in samples for line in lines],
            }
            if role := {"two-gpus": "worker", "two-engines": "engine"}.get(job):
                other = {"gpu_uuid": "GPU-1", "rank": 1, "process_id": "w", "role": role}
                tables["iterations"] += [json.dumps(json.loads(line) | other) for line in tables["iterations"]]
            for table, lines in tables.items():
                if lines:
                    data = "\n".join(lines).encode()
                    clickhouse.insert_once(client, table, data, f"{job} {table}", "JSONEachRow")
        yield client


def costs(client, job):
    question = query("serving-cost")
    return rows(client, question.sql, question.values({"job": job}))


@pytest.mark.parametrize(
    ("job", "watts"), [("counter", 400), ("power", 400), ("two-gpus", 600), ("two-engines", 400), ("some-minutes", 400)]
)
def test_energy_is_gpu_time_by_the_power_of_the_engines_gpus(client, job, watts):
    named = [row for row in costs(client, job) if row["is_named"]]
    assert len(named) == 4
    for row in named:
        tokens = row["prompt_tokens"] + row["output_tokens"]
        assert row["joules"] == pytest.approx(watts * row["gpu_s"], rel=1e-3)
        assert row["joules_per_1000"] == pytest.approx(1e3 * row["joules"] / tokens, rel=1e-2)


@pytest.mark.parametrize(("job", "watts"), [("counter", 400), ("power", 400), ("two-gpus", 600)])
def test_energy_of_requests_and_the_rest_are_all_that_the_gpus_took(client, job, watts):
    answer = costs(client, job)
    assert [row["is_named"] for row in answer] == [1, 1, 1, 1, 0]
    assert sum(row["joules"] for row in answer) == pytest.approx(watts * SECONDS, rel=0.01)
    assert answer[-1]["joules"] > 0
    assert answer[-1]["joules_per_1000"] is None


@pytest.mark.parametrize("job", ["none", "other-gpu"])
def test_without_samples_of_its_gpus_energy_is_not_known(client, job):
    answer = costs(client, job)
    assert {(row["joules"], row["joules_per_1000"]) for row in answer} == {(None, None)}
    assert all(row["gpu_s"] > 0 for row in answer)


def test_gpu_time_of_requests_and_the_rest_are_that_of_the_iterations(client):
    sql = "SELECT sum(gpu_ns) / 1e9 AS s FROM iterations WHERE job = 'none'"
    assert sum(row["gpu_s"] for row in costs(client, "none")) == pytest.approx(rows(client, sql)[0]["s"], abs=1e-3)
    started = "SELECT count() AS n FROM requests WHERE job = 'none' AND start >= fromUnixTimestamp64Nano({ns:Int64})"
    [stored] = rows(client, started, {"ns": START_NS})
    assert sum(row["requests"] for row in costs(client, "none")) == stored["n"]
