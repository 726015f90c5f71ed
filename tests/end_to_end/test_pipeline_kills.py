"""Programs die, go away, come and leave in the middle of a replay: nothing lost, nothing doubled, and the same results
as an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.pipeline import KEPT_FOR_EVER, RESULTS, Pipeline

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.offsets import Offsets
from drumline.infra.kafka.worker_status import read_statuses
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.localstack.processes import own_processes
from drumline.infra.runtime.processes import ManagedProcess
from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

#: Paced, so that there is a middle: the recording's 17 s in about 4 s. Recorded time, so that windows fall alike.
REPLAY = ("--speed", "4", "--keep-time", "--job", "kills")
#: Of its 208 batches of kernels so many are in Kafka when something happens.
MIDDLE = 80


def away(settings: Settings, name: str, seconds: float) -> None:
    """Broker or engine dies and is not started again for so long: the supervisor stands still."""
    processes = own_processes(settings)
    [supervisor], [process] = processes["supervisor"], processes[name]
    os.kill(supervisor.pid, signal.SIGSTOP)
    try:
        os.kill(process.pid, signal.SIGKILL)
        time.sleep(seconds)
    finally:
        os.kill(supervisor.pid, signal.SIGCONT)


def shares_work(settings: Settings, name: str, since_ns: int) -> bool:
    """Return True if the worker `name` has partitions."""
    return bool(read_statuses(settings, since_ns).get(name, {}).get("partitions"))


def come_and_go(pipeline: Pipeline, restarted: list[ManagedProcess]) -> None:
    """A second worker and a second sink join, then the first ones leave."""
    since_ns = time.time_ns()
    for other in restarted:
        other.start()
    assert wait_until(lambda: shares_work(pipeline.settings, "two", since_ns), 60), "the second worker has not joined"
    for first in pipeline.programs.values():
        first.stop()


@pytest.mark.long
def test_whatever_dies_goes_away_or_joins_changes_no_result(
    clean_stack: Settings,
    environment_of: Callable[[Settings], dict[str, str]],
    kill9: Callable[[str], int],
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    pipeline.environment |= KEPT_FOR_EVER  # recorded time grows old
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")

    restarted = [
        ManagedProcess(name, [name, "--instance", "two"], tmp_path / f"{name}-two.log", pipeline.environment)
        for name in ("stream", "sink")
    ]

    def replayed(disturb: Callable[[], object]) -> str:
        offsets = Offsets(clean_stack)  # one that outlived a broker may get the error that its leader epoch is too old
        kernels = offsets.places([Topic.KERNEL])

        def sent() -> int:
            return sum(offsets.ends(kernels).values())

        before = sent()
        replay = pipeline.start_replay(*REPLAY)
        assert wait_until(lambda: sent() >= before + MIDDLE, 60, lambda: replay.poll() is None), "no middle"
        disturb()
        out, _ = replay.communicate(timeout=120)
        assert replay.returncode == 0
        run = json.loads(out)["run"]
        pipeline.wait_stored()
        return str(run)

    with pipeline.running(), ExitStack() as stack:
        for other in restarted:
            stack.callback(other.stop)
        reference = pipeline.results(replayed(lambda: None))
        assert all(reference[table] for table in RESULTS)
        for name, disturb in {
            "sink killed": lambda: pipeline.kill("sink"),
            "engine killed": lambda: kill9("engine"),
            "worker killed": lambda: pipeline.kill("stream"),
            "broker away, longer than sessions last": lambda: away(clean_stack, "broker", 12),
            "others come, the first ones go": lambda: come_and_go(pipeline, restarted),
        }.items():
            run = replayed(disturb)
            report = pipeline.audit(run)
            assert report["clean"], (name, report["findings"])
            disturbed = pipeline.results(run)
            for table in RESULTS:
                assert disturbed[table] == reference[table], f"{table}: {name}"
