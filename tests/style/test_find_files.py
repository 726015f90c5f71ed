"""A stranger finds the file for a job: the terms that one types into a file finder lead to few candidates.

A file is a candidate if its path below the repository's root matches every term, as in an editor's file finder. The
terms are written from the job, not from the path; a job whose file is hard to find stays in the list.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cli", "lab", "views", "producers", "streams", "sinks", "infra", "schemas")
MOST_CANDIDATES = 3
LEAST_FOUND = 0.83

#: Job -> terms (regular expressions, two to four) and the file that does it.
JOBS: dict[str, tuple[tuple[str, ...], str]] = {
    # recording a job
    "attach to CUPTI when torch starts": (("collector", "attach"), "producers/collector/attach.py"),
    "code that CUPTI calls back": (("cupti|collector", "callback"), "producers/collector/callbacks.c"),
    "switch activity records on and off": (("collector", "record"), "producers/collector/recorder.py"),
    "notice that the decoder hangs": (("collector|decoder", "watchdog|stall"), "producers/collector/watchdog.py"),
    "yield to PyTorch's profiler": (("torch", "hook|profiler"), "producers/collector/torch_hooks.py"),
    "start-up hook of every Python": (
        ("startup", "sitecustomize|hook"),
        "producers/collector/startup/sitecustomize.py",
    ),
    "memory shared between job and decoder": (("buffer|shared", "pool|memory"), "producers/ipc/buffer_pool.py"),
    "parse the collection policy": (("ipc|collect", "policy"), "producers/ipc/policy.py"),
    "byte layout of CUPTI records": (("cupti", "layout|struct"), "producers/decoder/cupti_layout.py"),
    "turn CUPTI records into columns": (("cupti", "decode|parse"), "producers/decoder/cupti_decode.py"),
    "read strings from another process": (("remote|process", "memory"), "producers/decoder/remote_memory.py"),
    "rank and world size from the launcher": (("producers", "identity|rank"), "producers/identity.py"),
    # deriving
    "match NCCL kernels with calls": (("nccl|kernel", "match"), "producers/derive/nccl/kernel_matching.py"),
    "find steps again after lost records": (("nccl|derive", "resync"), "producers/derive/nccl/resync.py"),
    "infer steps without markers": (("step", "infer"), "producers/derive/steps/inferred_steps.py"),
    "time budget of a step": (("step", "budget"), "producers/derive/steps/budget.py"),
    "NVTX ranges": (("derive|producers", "nvtx|range"), "producers/derive/nvtx.py"),
    "emit rows of a live process once": (("live", "emit"), "producers/live_matching/emitter.py"),
    # spool, agent, replay
    "limit how much disk the spool takes": (("spool", "quota|limit|size"), "producers/spool/quota.py"),
    "remove spools of exited processes": (("spool", "evict|clean"), "producers/spool/exited_eviction.py"),
    "write frames into the spool": (("spool", "writer"), "producers/spool/writer.py"),
    "remember what the agent has delivered": (("agent", "cursor|position"), "producers/agent/cursor.py"),
    "produce batches to Kafka on a host": (("agent", "producer|kafka"), "producers/agent/producer.py"),
    "archive batches to S3": (("agent", "s3|object.?store|archiv"), "producers/agent/object_store.py"),
    "sample GPUs with NVML": (("nvml", "sampler"), "producers/nvml/sampler.py"),
    "stretch a recording to more ranks": (("replay", "rank|scale"), "producers/replay/rank_scaling.py"),
    "anonymise a recording": (("replay|record", "anonym"), "producers/replay/anonymise.py"),
    "check a host before a job": (("doctor", "check"), "producers/doctor/checks.py"),
    # streams
    "contract of a processing stage": (("stage", "infra|base|protocol"), "infra/runtime/stage.py"),
    "thresholds of verdicts": (("stragg|streams", "threshold"), "streams/core/thresholds.py"),
    "watermark of a process": (("window|stream", "watermark"), "streams/windows/watermark.py"),
    "rolling kernel frequency": (("kernel", "frequency"), "streams/windows/kernel_frequency.py"),
    "copy bandwidth": (("memcpy|copy", "bandwidth"), "streams/windows/memcpy_bandwidth.py"),
    "join a collective over ranks": (("collective", "join|match"), "streams/lateness/collective_join.py"),
    "share of lost time per rank": (("stragg", "attribut|lost"), "streams/stragglers/analysis/attribution.py"),
    "classify the cause of a straggler": (("stragg", "cause"), "streams/stragglers/analysis/cause.py"),
    "detect a throttled GPU": (("gpu", "cause|throttl"), "streams/stragglers/analysis/gpu_cause.py"),
    "detect a slow link": (("slow", "link"), "streams/stragglers/analysis/slow_link.py"),
    "cost of a straggler in GPU time": (("stragg|analysis", "cost"), "streams/stragglers/analysis/cost.py"),
    "raise and clear alarms": (("stragg", "alarm|alert"), "streams/stragglers/alarm.py"),
    "a job that hangs": (("stragg", "stall|hang"), "streams/stragglers/stalled.py"),
    "acknowledge input after output": (("worker", "ack|commit"), "streams/worker/ack_queue.py"),
    "workaround for Faust's recovery": (("faust", "recover"), "streams/worker/faust_patches/recovery.py"),
    "Faust's settings": (("faust", "config|setting"), "streams/worker/faust_config.py"),
    "a topic that is recreated": (("worker|stream", "topic"), "streams/worker/checks/topic_watch.py"),
    "consumer lag of the worker": (("worker|stream", "lag"), "streams/worker/lag.py"),
    "run stages without Kafka": (("stream", "offline"), "streams/offline.py"),
    # sinks
    "exactly-once commit protocol": (("sink", "commit"), "sinks/commit_cycle.py"),
    "intent in commit metadata": (("sink", "intent"), "sinks/ranges/intent.py"),
    "stop at too many dead letters": (("dead.?letter", "limit|max"), "sinks/ranges/dead_letter_limit.py"),
    "send dead letters": (("sink", "dead.?letter"), "sinks/kafka/dead_letters.py"),
    "ledger rows": (("sink", "ledger"), "sinks/inserts/ledger.py"),
    "Native blocks for ClickHouse": (("native", "format|block"), "sinks/tables/native_format.py"),
    "two sinks of one name": (("sink", "fenc|member"), "sinks/kafka/fencing.py"),
    "was the range inserted already": (("sink|insert", "stored|exist"), "sinks/inserts/stored_check.py"),
    "audit rollups": (("audit", "rollup"), "sinks/audit/rollups.py"),
    # schemas
    "binary codec of batches": (("schema", "codec"), "schemas/codec.py"),
    "compatibility of schema versions": (("schema", "compat"), "schemas/compatibility.py"),
    "release a schema version": (("schema", "release|version"), "schemas/release.py"),
    "header of Confluent's wire format": (("schema", "confluent|wire"), "schemas/confluent.py"),
    "record keys": (("schema", "key"), "schemas/keys.py"),
    "list of topics and partitions": (("schema", "topic"), "schemas/topics.py"),
    # infra
    "all settings": (("config", "settings"), "infra/config/settings.py"),
    "warn about misspelt variables": (("config", "unknown|variable"), "infra/config/unknown_variables.py"),
    "list of metrics": (("telemetry", "metrics"), "infra/telemetry/metrics.py"),
    "readiness and liveness": (("telemetry|infra", "health|ready"), "infra/telemetry/health.py"),
    "required Kafka ACLs": (("kafka", "acl"), "infra/kafka/acls.py"),
    "wait until everything is drained": (("kafka|infra", "drain"), "infra/kafka/drain.py"),
    "apply ClickHouse migrations": (("clickhouse", "migrat"), "infra/clickhouse/migrate.py"),
    "retention of tables": (("clickhouse", "retention|ttl"), "infra/clickhouse/retention.py"),
    "named SQL queries": (("clickhouse", "queries"), "infra/clickhouse/queries.py"),
    "demangle kernel names": (("clickhouse|kernel", "demangle"), "infra/clickhouse/demangle.py"),
    "local ClickHouse engine": (("local", "clickhouse", "engine"), "infra/localstack/clickhouse/engine.py"),
    "local Kafka broker": (("local", "broker"), "infra/localstack/kafka/broker.py"),
    "straggler dashboard": (("dashboard", "stragg"), "infra/grafana/dashboards/stragglers.py"),
    "alert rules of GPUs": (("alert", "device|gpu"), "infra/grafana/alerts/device.py"),
    "contact points of Grafana": (("grafana", "contact"), "infra/grafana/provisioning/contacts.py"),
    "score verdicts on a recording": (("evaluat", "scor"), "lab/evaluate/scoring.py"),
    "published method NVRx": (("evaluat|method", "nvrx"), "lab/evaluate/methods/nvrx.py"),
    "charts of the report": (("report", "chart"), "views/report/charts.py"),
    "benchmark of the sink": (("bench", "sink"), "lab/bench/benchmarks/sink.py"),
    "overhead on a training step": (("bench", "overhead"), "lab/bench/overhead/benchmark.py"),
    "kill targets of chaos runs": (("chaos", "target"), "lab/chaos/targets.py"),
    "command `drumline topics`": (("cli", "topics"), "cli/operate/topics.py"),
    "exit with a message": (("cli", "console|exit"), "cli/console.py"),
    "retry with backoff": (("retry|backoff", "runtime|util|common"), "infra/runtime/retry.py"),
    "stop at SIGTERM": (("signal|sigterm", "runtime|util|common"), "infra/runtime/signals.py"),
    "how long records of a host are joined": (("schema|agent", "join"), "schemas/parts/joining.py"),
    "parts of a GPU that MIG divided": (("nvml|producers", "mig"), "producers/nvml/mig_instances.py"),
    "memory that the worker's state may take": (("stream", "state.?(budget|limit)"), "streams/core/state_budget.py"),
    "group messages that are handled at once": (("worker|record", "group"), "streams/worker/records/grouping.py"),
    "steps of a ring without marks": (("ring", "unmarked|infer"), "producers/rings/unmarked_steps.py"),
    "decode a record in the sink": (("sink", "read|decode"), "sinks/ranges/reading.py"),
    # hard to find, and kept for that
    "state of a straggler stage": (("stragg", "state"), "streams/stragglers/state.py"),
    "error classes of the sink": (("sink", "error"), "sinks/errors.py"),
    "report of the demo": (("demo", "report|result"), "lab/demo/report.py"),
    "table definitions of the sink": (("sink", "table"), "sinks/tables/tables.py"),
    "replay dead letters": (("dlq|dead.?letter", "replay"), "views/deadletters/replay.py"),
    "records that never decode": (("worker|stream", "poison|dead.?letter"), "streams/worker/output.py"),
    "clock that never steps back": (("monotonic|clock", "stream"), "streams/worker/clock.py"),
    "give memory back to the system": (("memory|heap", "runtime|util"), "infra/runtime/malloc.py"),
    "resume after a rebalance": (("sink", "rebalance|assign"), "sinks/kafka/assignment.py"),
    "lost step markers": (("marker", "lost|missing"), "producers/live_matching/emitter.py"),
    "heartbeat of an idle process": (("heartbeat|idle", "process"), "producers/batching/live.py"),
}


def product_files() -> list[str]:
    """Return the paths of the product's modules, C sources included, below the root."""
    return sorted(
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for suffix in ("*.py", "*.c")
        for file in (ROOT / package).rglob(suffix)
        if file.name != "__init__.py"
    )


def candidates(terms: tuple[str, ...], files: list[str]) -> list[str]:
    """Return the files whose path matches every term."""
    return [file for file in files if all(re.search(term, file) for term in terms)]


FILES = product_files()


@pytest.mark.parametrize(("terms", "expected"), JOBS.values(), ids=JOBS)
def test_the_file_of_each_job_exists_and_terms_are_few(terms, expected):
    assert expected in FILES, "moved or renamed: change the path here, and the terms only if a stranger would"
    assert 2 <= len(terms) <= 4


def test_most_jobs_lead_to_few_candidates():
    unfound = {
        job: matching
        for job, (terms, expected) in JOBS.items()
        if expected not in (matching := candidates(terms, FILES)) or len(matching) > MOST_CANDIDATES
    }
    assert len(JOBS) >= 58
    assert len(JOBS) - len(unfound) >= LEAST_FOUND * len(JOBS), unfound
