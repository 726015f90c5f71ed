"""Twelve questions of an analyst, as typed the first time, against figures computed from the recordings' own files.

Each is answered by a named question or by an example of the docs, whose text is read from the page.
"""

import json
import re
import shlex
import struct
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import drumline_program, migrated_database
from support.demo_engine import FOR_EVER, RECORDING

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.clickhouse_settings import ClickHouseSettings
from drumline.infra.localstack.clickhouse.engine import temporary_engine
from drumline.infra.localstack.ephemeral import environment, ephemeral_settings
from drumline.lab.bench.direct_load import JobCopy, load

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guide"
BEFORE = ROOT / "tests" / "data" / "traces" / "ddp-mild"
#: The newest run is the demo's, an hour old; the one before is another recording, a day older.
RUNS = {"newest": (RECORDING, 3_600), "before": (BEFORE, 90_000)}
TEAM, PRICE = "vision", 3.5
#: Copies and memory as CUPTI numbers them.
COPIES = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
MEMORY = {1: "pageable", 2: "pinned", 3: "device", 4: "array", 5: "managed"}


def table(folder, name):
    return pq.read_table(folder / f"{name}.parquet").to_pydict()


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def query(tmp_path_factory):
    """Run a command as it is typed; the rows that it prints."""
    settings = ephemeral_settings(tmp_path_factory.mktemp("analyst"), clickhouse=ClickHouseSettings(retention=FOR_EVER))
    with temporary_engine(settings):
        migrated_database.create(settings)
        client = clickhouse.connect(settings, database=settings.clickhouse.database)
        for run, (folder, age_s) in RUNS.items():
            begin = min(phase["start_ns"] for phase in manifest(folder)["phases"])
            load(client, settings, JobCopy(folder, "demo", run, shift_ns=time.time_ns() - age_s * 10**9 - begin))
        clickhouse.command(
            client,
            f"INSERT INTO processes_versions SELECT * REPLACE (map('team', '{TEAM}') AS labels, now64(3) AS published, "
            "_offset + 1000 AS _offset) FROM processes_versions WHERE run = 'newest'",
        )
        client.close()

        def run(typed):
            arguments = shlex.split(typed)[1:]
            done = drumline_program.run(*arguments, "--json", environment=environment(settings))
            assert not done.returncode, done.stderr
            return [json.loads(line) for line in done.stdout.splitlines()]

        yield run


def example_of(page, sentence):
    """The statement of a page below the sentence that begins like this."""
    text = (GUIDE / page).read_text()
    return re.search(rf"^{re.escape(sentence)}.*?```sql\n(.*?)```", text, re.DOTALL | re.MULTILINE)[1].strip()


def typed(statement):
    return f"drumline sql {shlex.quote(statement)} --job demo"


def lengths_of_steps(folder):
    """Lengths of the steps of rank 0, by the clock of the program that recorded them; ns."""
    return np.array([step["end_ns"] - step["start_ns"] for step in manifest(folder)["steps_rank0"]])


def lost_by_rank(folder):
    """Rank -> GPU-seconds of its peers that its phases took more than the healthy ones."""
    known = manifest(folder)
    healthy = np.median([phase["mean_step_ms"] for phase in known["phases"] if not phase["fault_ranks"]])
    lost = Counter()
    for phase in known["phases"]:
        for rank in phase["fault_ranks"]:
            steps = phase["last_step"] - phase["first_step"] + 1
            lost[rank] += (phase["mean_step_ms"] - healthy) / 1e3 * steps * (known["world_size"] - 1)
    return lost


def sums(columns, key, value):
    total = Counter()
    for name, amount in zip(columns[key], columns[value], strict=True):
        total[name] += amount
    return total


def test_which_ten_kernels_take_most_time(query):
    answer = query("drumline sql top-kernels --job demo --limit 10")
    kernels = table(RECORDING, "kernel")
    times, counts = sums(kernels, "name", "duration"), Counter(kernels["name"])
    first = times.most_common(10)
    assert [row["launches"] for row in answer] == [counts[name] for name, _ in first]
    assert [row["gpu_s"] for row in answer] == pytest.approx([ns / 1e9 for _, ns in first], abs=0.006)
    assert [row["percent"] for row in answer] == pytest.approx([100 * ns / times.total() for _, ns in first], abs=0.06)


def test_how_much_is_copied_in_each_direction_and_how_fast(query):
    answer = query("drumline sql memcpy --job demo")
    copies = table(RECORDING, "memcpy")
    size, busy = Counter(), Counter()
    rows = zip(*(copies[name] for name in ("copy_kind", "src_kind", "dst_kind", "bytes", "duration")), strict=True)
    for kind, source, target, length, duration in rows:
        key = (COPIES[kind], MEMORY[source], MEMORY[target])
        size[key] += length
        busy[key] += duration
    given = {(row["direction"], row["source"], row["target"]): row for row in answer if row["direction"] != "memset"}
    assert given.keys() == size.keys()
    for key, row in given.items():
        assert row["gigabytes"] == pytest.approx(size[key] / 1e9, abs=0.006)
        assert row["gb_per_s"] == pytest.approx(size[key] / busy[key], abs=0.06)


def communication_by_size(folder):
    """Range of sizes -> GPU-seconds: the n-th call of a rank, by its NVTX payload, is its n-th NCCL kernel."""
    payloads, markers, kernels = (table(folder, name) for name in ("marker_payload", "marker", "kernel"))
    sizes = {
        (rank, number): struct.unpack_from("<Q", payload, 8)[0]
        for rank, number, payload in zip(payloads["rank"], payloads["id"], payloads["payload"], strict=True)
    }
    calls, runs = defaultdict(list), defaultdict(list)
    for rank, number, name, at in zip(*(markers[key] for key in ("rank", "id", "name", "timestamp")), strict=True):
        if name in ("ncclAllReduce", "ncclBroadcast", "ncclAllGather"):
            calls[rank].append((at, sizes[rank, number]))
    for rank, name, at, duration in zip(*(kernels[key] for key in ("rank", "name", "start", "duration")), strict=True):
        if "ncclDevKernel" in name:
            runs[rank].append((at, duration))
    seconds = Counter()
    for rank in calls:
        for (_, size), (_, duration) in zip(sorted(calls[rank]), sorted(runs[rank]), strict=True):
            name = "below 64 KiB" if size < 1 << 16 else "to 16 MiB" if size < 1 << 24 else "larger"
            seconds[name] += duration / 1e9
    return seconds


def test_which_sizes_of_messages_take_communication_its_time(query):
    answer = query(typed(example_of("sql.md", "The share of NCCL's time by message size")))
    expected = sum((communication_by_size(folder) for folder, _ in RUNS.values()), Counter())
    assert {row["size"]: row["gpu_s"] for row in answer} == pytest.approx(expected, rel=0.01)
    for row in answer:
        assert row["percent"] == pytest.approx(100 * expected[row["size"]] / expected.total(), abs=0.1)


def test_how_long_the_slowest_steps_of_each_day_take(query):
    answer = query(typed(example_of("sql.md", "The slowest steps of each day")))
    assert len(answer) == len(RUNS)
    for row, folder in zip(answer, [BEFORE, RECORDING], strict=True):
        assert row["p99_ms"] == pytest.approx(np.quantile(lengths_of_steps(folder), 0.99) / 1e6, rel=0.01)


def test_the_example_in_python_has_the_length_of_a_step(query):
    statement = re.search(r'db\.sql\("(.*? AND ns > 0)"\)', (GUIDE / "connect.md").read_text())[1]
    answer = query(
        f"drumline sql {shlex.quote(statement.replace(' AND', ' AND run = {run:String} AND', 1))} --run newest"
    )
    assert {row["rank"] for row in answer} == {0, 1, 2, 3}
    for rank in range(4):
        median = np.median([row["ns"] for row in answer if row["rank"] == rank])
        assert median == pytest.approx(np.median(lengths_of_steps(RECORDING)), rel=0.02)


def test_what_each_team_lost(query):
    answer = query("drumline sql cost-by-label --by team --since 7d")
    known = manifest(RECORDING)
    kernels = table(RECORDING, "kernel")
    hours = known["world_size"] * (max(kernels["start"]) - min(kernels["start"])) / 3.6e12
    [row] = [row for row in answer if row["label"] == TEAM]
    assert (row["jobs"], row["runs"]) == (1, 1)
    assert row["gpu_hours"] == pytest.approx(hours, rel=0.05)
    assert row["gpu_hours_lost"] == pytest.approx(lost_by_rank(RECORDING).total() / 3600, rel=0.15)


def test_which_hosts_hold_jobs_back_whatever_the_cause(query):
    answer = query("drumline sql late-hosts --since 12h")
    host_of = {entry["rank"]: entry["host"] for entry in manifest(RECORDING)["ranks"]}
    lost = Counter()
    for rank, seconds in lost_by_rank(RECORDING).items():
        lost[host_of[rank]] += seconds
    assert [row["host"] for row in answer] == [host for host, _ in lost.most_common()]
    assert [row["gpu_s_lost"] for row in answer] == pytest.approx([s for _, s in lost.most_common()], rel=0.2)


def test_which_rank_is_late_most(query):
    answer = query("drumline sql straggler-cost --job demo")
    cost = Counter()
    for row in answer:
        cost[row["rank"]] += row["gpu_seconds_lost"]
    expected = lost_by_rank(RECORDING)
    assert [rank for rank, _ in cost.most_common()] == [rank for rank, _ in expected.most_common()]
    # A window that is not suspect costs nothing, so a mild fault has less than its phase took.
    assert all(0.5 * seconds < cost[rank] < 1.1 * seconds for rank, seconds in expected.items())


def test_which_kernels_became_slower_since_the_run_before(query):
    answer = query("drumline sql compare-kernels --job demo")
    sides = [table(folder, "kernel") for folder in (RECORDING, BEFORE)]
    times, counts = [sums(side, "name", "duration") for side in sides], [Counter(side["name"]) for side in sides]
    names = sorted(times[0] | times[1], key=lambda name: -max(times[0][name], times[1][name]))[: len(answer)]
    for column, side in (("a", 0), ("b", 1)):
        assert [row[f"{column}_launches"] for row in answer] == [counts[side][name] for name in names]
        assert [row[f"{column}_ms"] for row in answer] == pytest.approx([times[side][n] / 1e6 for n in names], abs=0.06)


@pytest.mark.parametrize("question", ["compare-steps", "compare-runs"])
def test_how_two_runs_compare(question, query):
    answer = query(f"drumline sql {question} --job demo")
    if question == "compare-runs":
        assert all(answer[0][f"{side}_launches_per_step"] for side in "ab")
        return
    assert [row["run"] for row in answer] == ["newest", "before"]
    for row, folder in zip(answer, [RECORDING, BEFORE], strict=True):
        assert row["p50_ms"] == pytest.approx(np.median(lengths_of_steps(folder)) / 1e6, rel=0.02)


def test_how_long_ranks_wait_for_data_is_stated_as_not_measured(query):
    answer = query(typed(example_of("sql.md", "Data loading by rank")))
    assert [row["rank"] for row in answer] == [0, 1, 2, 3]
    assert {row["load_s"] for row in answer} == {None}
    assert all(row["idle_s"] > 0 for row in answer)


def test_how_utilisation_and_power_go_together(query):
    answer = query(typed(example_of("sql.md", "Utilisation against power")))
    samples = [table(folder, "nvml") for folder, _ in RUNS.values()]
    for row in answer:
        pairs = [
            (util, power)
            for side in samples
            for uuid, util, power in zip(side["uuid"], side["util_gpu"], side["power_mw"], strict=True)
            if uuid == row["gpu_uuid"]
        ]
        util, power = np.array(pairs, float).T
        assert row["util"] == pytest.approx(util.mean(), rel=0.02)
        assert row["watts"] == pytest.approx(power.mean() / 1e3, rel=0.02)
        assert row["r"] == pytest.approx(np.corrcoef(util, power)[0, 1], abs=0.03)


def test_what_a_thousand_steps_cost(query):
    answer = {row["run"]: row for row in query(typed(example_of("sql.md", "The price of 1,000 steps")))}
    for run, (folder, _) in RUNS.items():
        steps = manifest(folder)["steps_rank0"]
        hours = (steps[-1]["end_ns"] - steps[0]["start_ns"]) / 3.6e12
        assert (answer[run]["steps"], answer[run]["ranks"]) == (len(steps), 4)
        assert answer[run]["money"] == pytest.approx(hours * 4 * PRICE / len(steps) * 1_000, rel=0.03)
