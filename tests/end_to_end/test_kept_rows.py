"""Policy rollup with real Kafka, worker, sink and ClickHouse: windows and verdicts as of `always`, few bytes, pulls.

The recorded job is spooled twice, as decoders of both policies spool it.
"""

import json
import time
from collections import Counter

import pytest
from support import migrated_database
from support.labs.agent import process as process_record
from support.pipeline import VOLATILE, Pipeline

from drumline.infra.localstack.stack import wait_until
from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.producers.replay.recording import RecordedJob
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.topics import KEPT_TOPICS, RAW_TOPICS, Topic

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(900)]
SPOOLED = frozenset(RAW_TOPICS) - {Topic.PROCESS}
HOP_NS = 5 * 10**9
HOST = "edge-host"
ALWAYS, ROLLUP = "always", "rollup"


def spool(root, job, run, shift_ns):
    """Write what the decoders of a job's processes write; run `rollup` keeps its rows on the host."""
    spools = {}
    for out in job.batches(run, shift_ns):
        batch, process = out.batch, out.batch.envelope["process_id"]
        batch.envelope["host"] = HOST  # the agent's, which answers pulls
        if process not in spools:
            same = {name: batch.envelope[name] for name in ("job", "run", "rank", "world_size", "host", "gpu_uuid")}
            record = process_record(process, process_id=process, pid=7, collector={}, **same)
            spools[process] = SpoolWriter(root, record, SpoolLimits(segment_bytes=500_000))
        assert spools[process].append_batch(out.key, batch, kept=run == ROLLUP and batch.topic in KEPT_TOPICS)
    for writer in spools.values():
        if run == ROLLUP:
            kept = {Topic.KERNEL: "kept_kernels", Topic.MEMCPY: "kept_copies", Topic.RANGE: "kept_ranges"}
            writer.identify({"collector": {name: str(writer.kept[topic]) for topic, name in kept.items()}})
        writer.close()
    return {writer.folder.name for writer in spools.values()}


@pytest.fixture
def pipeline(clean_stack, environment_of, tmp_path):
    migrated_database.create(clean_stack)
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    pipeline.drumline("topics", "apply")
    off = dict.fromkeys(("GPU_S", "HOST_S", "NETWORK_S"), "0") | {"STACKS": "false", "ON_VERDICT": "nothing"}
    root = tmp_path / "spool"
    pipeline.environment |= {f"DRUMLINE_AGENT__{name}": value for name, value in off.items()}
    pipeline.environment |= {"DRUMLINE_SPOOL__ROOT": str(root)}
    pipeline.environment["DRUMLINE_HOST"] = HOST
    pipeline.environment["DRUMLINE_AGENT__KEPT_FOLDER"] = str(tmp_path / "kept")
    pipeline.programs["agent"] = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", pipeline.environment)
    pipeline.root = root
    return pipeline


def test_rollup_gives_the_windows_and_verdicts_of_always_and_rows_when_they_are_asked_for(pipeline):
    job = RecordedJob(DEMO_RECORDING, job="edge", topics=SPOOLED)
    shift_ns = (time.time_ns() - 10 * 10**9 - job.last_ns) // HOP_NS * HOP_NS
    pipeline.root.mkdir()

    def stored(table, run, names):
        rows = pipeline.query(f"SELECT {names} FROM {table} WHERE job = 'edge' AND run = '{run}'")
        return Counter(json.dumps({k: v for k, v in row.items() if k not in VOLATILE}, default=str) for row in rows)

    def published():
        sql = "SELECT topic, sum(rows) AS n FROM ledger WHERE job = 'edge' AND run = 'rollup' GROUP BY topic"
        return {row["topic"]: int(row["n"]) for row in pipeline.query(sql)}

    with pipeline.running():
        names = {name for run in (ALWAYS, ROLLUP) for name in spool(pipeline.root, job, run, shift_ns)}
        is_published = wait_until(lambda: not any((pipeline.root / name).exists() for name in names), 240)
        assert is_published, (pipeline.logs / "agent.log").read_text()[-3000:]
        for table in ("stragglers", "kernel_frequency", "memcpy_bandwidth", "steps"):
            same = lambda table=table: (  # noqa: E731
                (rows := stored(table, ROLLUP, "*")) and rows == stored(table, ALWAYS, "*")
            )
            assert wait_until(same, 240), f"{table}: {stored(table, ROLLUP, '*') - stored(table, ALWAYS, '*')}"
        assert not KEPT_TOPICS & published().keys()
        sizes = pipeline.query("SELECT run, sum(launches) AS n FROM kernel_frequency WHERE job = 'edge' GROUP BY run")
        assert len({row["n"] for row in sizes}) == 1

        steps = [row["step"] for row in pipeline.query(
            "SELECT DISTINCT step FROM steps WHERE job = 'edge' AND run = 'rollup' ORDER BY step")]  # fmt: skip
        first, last = steps[10], steps[14]
        for attempt in range(2):
            arguments = ("--job", "edge", "--run", ROLLUP, "--ranks", "0,2", "--steps", f"{first}:{last}", "--json")
            answer = json.loads(pipeline.drumline("pull", *arguments))
            assert [(rank["rank"], rank["answer"]) for rank in answer["ranks"]] == [(0, "done"), (2, "done")]
            texts = [rank["text"] for rank in answer["ranks"]]
            assert all(text.startswith(f"steps {first} to {last}, ") for text in texts)
            assert all(("published before" in text) == bool(attempt) for text in texts)
        pipeline.wait_stored()
        inside = f"""SELECT rank, name, k.start AS at, duration_ns FROM kernels AS k INNER JOIN steps AS s
            ON k.job = s.job AND k.run = s.run AND k.rank = s.rank
            WHERE k.job = 'edge' AND k.run = '{{}}' AND rank IN (0, 2) AND s.step BETWEEN {first} AND {last}
            AND k.start BETWEEN s.start AND s.end_time"""
        of_steps = {run: Counter(json.dumps(row, default=str) for row in pipeline.query(inside.format(run)))
                    for run in (ALWAYS, ROLLUP)}  # fmt: skip
        assert of_steps[ROLLUP] == of_steps[ALWAYS]
        assert sum(of_steps[ROLLUP].values()) > 1_000
        total = {
            run: pipeline.query(f"SELECT count() AS n FROM kernels WHERE run = '{run}'")[0]["n"] for run in of_steps
        }
        assert total[ROLLUP] < total[ALWAYS] / 2
        assert stored("kernel_frequency", ROLLUP, "*") == stored("kernel_frequency", ALWAYS, "*"), "not counted again"
        report = pipeline.audit(ROLLUP)
        assert report["clean"], report["findings"]
        assert {row["rank"]: int(row["in_windows"]) - int(row["kernels"]) for row in report["kept"]} == dict.fromkeys(
            range(4), 0
        )
