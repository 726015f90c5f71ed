"""A worker halted for longer than its session wakes in the middle of its successor's work, and changes no result."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.pipeline import KEPT_FOR_EVER, RESULTS, Pipeline

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.offsets import Offsets
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.runtime.processes import ManagedProcess
from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long, pytest.mark.timeout(900)]
HALT_S = 16.0
#: Far less than partitions are without a worker: still no rank is taken for silent meanwhile.
IDLE_S = 2
ROUNDS = int(os.environ.get("HALTS", "2"))
REPLAY = ("--speed", "3", "--keep-time", "--job", "halts")
#: Of the 416 batches of kernels of two replays so many are in Kafka when the worker is halted.
MIDDLE = 150


def test_a_halted_worker_changes_no_result(
    clean_stack: Settings, environment_of: Callable[[Settings], dict[str, str]], tmp_path: Path
) -> None:
    pipeline = Pipeline(clean_stack, environment_of(clean_stack) | KEPT_FOR_EVER, tmp_path)  # recorded time grows old
    pipeline.environment["DRUMLINE_STREAM__IDLE_S"] = str(IDLE_S)
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    workers = {
        name: ManagedProcess("stream", ["stream", "--instance", name], tmp_path / f"{name}.log", pipeline.environment)
        for name in ("one", "two")
    }
    pipeline.programs = {**workers, "sink": pipeline.programs["sink"]}
    offsets = Offsets(clean_stack)
    kernels = offsets.places([Topic.KERNEL])

    def shared() -> bool:
        statuses = read_statuses(pipeline.settings, 0)
        return all(statuses.get(name, {}).get("partitions") for name in workers)

    def sent() -> int:
        return sum(offsets.ends(kernels).values())

    def replayed(halted: str) -> list[str]:
        before, replays = sent(), [pipeline.start_replay(*REPLAY) for _ in range(2)]
        assert wait_until(lambda: sent() >= before + MIDDLE, 60), "no middle"
        if halted:
            pid = workers[halted].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(HALT_S)
            finally:
                os.kill(pid, signal.SIGCONT)
        runs = [str(json.loads(replay.communicate(timeout=120)[0])["run"]) for replay in replays]
        pipeline.wait_stored()
        return runs

    with pipeline.running():
        assert wait_until(shared, 90), "the workers do not share the partitions"
        first, second = replayed("")
        reference = pipeline.results(first)
        assert all(reference[table] for table in RESULTS)
        assert pipeline.results(second) == reference
        damaged = []
        for number in range(ROUNDS):
            halted = ("one", "two")[number % 2]
            assert wait_until(shared, 90), "the halted worker does not join again"
            for run in replayed(halted):
                report, results = pipeline.audit(run), pipeline.results(run)
                wrong = {
                    table: sorted(set(results[table]) ^ set(reference[table]))[:4]
                    for table in RESULTS
                    if results[table] != reference[table]
                }
                if wrong or not report["clean"]:
                    damaged.append((number, halted, wrong, report["findings"][:3]))
        assert not damaged, f"{len(damaged)} of {2 * ROUNDS} runs\n" + "\n".join(map(str, damaged))
    for name, worker in workers.items():
        assert "halted for longer than its session" in (tmp_path / f"{name}.log").read_text(), name
        assert worker.exits == [], name
