"""Full disks under the local stack: no program ends for good, and nothing is lost that is not counted.

A tmpfs in place of each state folder stands for its disk: 64 MB more than the empty stack writes there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.pipeline import Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.drain import wait_stored
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.localstack.disk_space import MB, NEEDED_MB
from drumline.infra.localstack.ephemeral import ephemeral_settings, run_audit, running_stack
from drumline.infra.localstack.processes import own_processes
from drumline.infra.localstack.status import status
from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.chaos.load import ReplayLoad
from drumline.lab.demo_recording import DEMO_RECORDING

Environment = Callable[[Settings], dict[str, str]]
#: Beyond what the empty stack writes; bytes.
SPARE_BYTES = 64 * MB
#: That long nothing can be written: longer than a replay takes, and than the broker's first restarts; s.
FULL_S = 20.0


@contextmanager
def disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of that many bytes in the folder's place."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Write until the disk has no free block; return the file."""
    file = folder / "fill"
    with file.open("ab", buffering=0) as out:
        for block in (1 << 20, 1):
            try:
                while True:
                    out.write(b"x" * block)
            except OSError:
                continue
    return file


def jobs_stored(pipeline: Pipeline) -> set[str]:
    """The jobs that have rows of kernels."""
    return {row["job"] for row in pipeline.query("SELECT DISTINCT job FROM kernels")}


def is_up(settings: Settings) -> bool:
    """Broker and engine answer."""
    return all(process.get("answers", True) for process in status(settings)["processes"].values())


def run(settings: Settings, environment: Environment, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "drumline.cli.app", *arguments]
    return subprocess.run(command, env=environment(settings), capture_output=True, text=True, timeout=WAIT_S)


def test_up_on_a_full_disk_names_it_and_the_space_that_is_needed(
    private: Settings, environment_of: Environment
) -> None:
    state, needed = private.local.state, sum(NEEDED_MB.values())
    with disk(state, MB):
        fill(state)
        done = run(private, environment_of, "up")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert f"the disk of {state} is full: 0 of 1 MB are free" in done.stderr
        assert f"kafka, clickhouse, logs need {needed} MB" in done.stderr
        assert "is full" in run(private, environment_of, "status").stdout


@pytest.mark.parametrize("folder", list(NEEDED_MB))
def test_up_names_the_one_folder_whose_disk_is_full(
    private: Settings, environment_of: Environment, folder: str
) -> None:
    place = private.local.state / folder
    with disk(place, 2 * MB):
        done = run(private, environment_of, "up")
    assert done.returncode == 1
    assert f"the disk of {place} is full" in done.stderr
    assert f"{folder} need {NEEDED_MB[folder]} MB" in done.stderr


def test_up_where_no_file_can_be_written_is_one_line_without_a_traceback(
    private: Settings, environment_of: Environment
) -> None:
    """A quota or a limit, which the file system's free blocks do not show."""
    command = f"ulimit -f 0; exec {sys.executable} -m drumline.cli.app up"
    environment = environment_of(private)
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=WAIT_S)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert f"a start needs {sum(NEEDED_MB.values())} MB" in done.stderr


@pytest.mark.stack
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("folder", ["", *NEEDED_MB])
def test_a_disk_that_is_full_for_a_while_ends_no_program_and_loses_nothing(
    jars: Path, tmp_path: Path, environment_of: Environment, folder: str
) -> None:
    settings = ephemeral_settings(tmp_path / "state", jars.parent)
    place = settings.local.state / folder
    with disk(place, 1000 * MB), running_stack(settings):
        used = os.statvfs(place)
        size = (used.f_blocks - used.f_bfree) * used.f_frsize + SPARE_BYTES
        subprocess.run(["mount", "-o", f"remount,size={size}", place], check=True)
        pipeline = Pipeline(settings, environment_of(settings), settings.local.state)
        programs = pipeline.programs
        log = settings.local.state / "agent.log"
        programs["agent"] = ManagedProcess("agent", ["agent"], log, pipeline.environment)
        with pipeline.running():
            replays = [pipeline.start_replay("--speed", "1", "--job", "direct")]
            replays.append(pipeline.start_replay("--job", "spooled", "--spool", str(settings.spool.root)))
            assert wait_until(lambda: jobs_stored(pipeline) == {"direct", "spooled"}, WAIT_S)
            filler = fill(place)
            time.sleep(FULL_S / 2)
            for name in ("broker", "engine"):  # one that keeps its files open may live; one that starts may not
                for process in own_processes(settings)[name]:
                    process.kill()
            time.sleep(FULL_S / 2)
            answer = run(settings, environment_of, "status").stdout
            filler.unlink()
            subprocess.run(["mount", "-o", f"remount,size={1000 * MB}", place], check=True)
            assert "is full" in answer
            assert wait_until(lambda: is_up(settings), 90)
            results = [replay.communicate(timeout=WAIT_S) for replay in replays]
            assert [replay.returncode for replay in replays] == [0, 0], results
            replayed = ReplayLoad(DEMO_RECORDING, pipeline.environment, log, 1, settings.spool.root)
            assert wait_until(lambda: not replayed.spools(), WAIT_S)
            ends = {name: program.exits for name, program in programs.items()}
            assert ends == {name: [] for name in programs}
            assert all(psutil.pid_exists(program.pid or 0) for program in programs.values())
            programs["agent"].stop()  # it samples its host for ever
            waited = wait_stored(settings, 240, lambda: None)
            assert waited, waited.reason
            report = run_audit(pipeline.environment)
            assert report["clean"], report["findings"]
