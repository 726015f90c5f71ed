"""`make setup` while pip is at work: lines as it goes on, its error, and nothing left after Ctrl-C."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.wait_limit import WAIT_S

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A folder with the Makefile, two locked packages, and a pip that does what PIP says."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "infra" / "requirements").mkdir(parents=True)
    (tmp_path / "infra" / "requirements" / "dev.txt").write_text("a==1\nb==1\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "pip"):
        (tmp_path / ".venv" / "bin" / name).write_text('#!/bin/sh\neval "$PIP"\n')
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)
    return tmp_path


def setup(folder, pip):
    command = ["make", f"PYTHON={sys.executable}", "PROGRESS_S=1", ".venv/ready"]
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PIP": pip}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip


def test_it_prints_how_far_pip_is_and_is_done_once(checkout):
    place = ".venv/lib/python3.11/site-packages/a-1.dist-info"
    run = setup(checkout, f"echo Collecting a==1; mkdir -p {place}; sleep 1.5")
    shown, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode == 0, shown
    assert "1 of at most 2 packages fetched, 1 installed" in shown
    assert (checkout / ".venv" / "ready").exists()


def test_a_failure_shows_the_error_of_pip_and_is_tried_again_next_time(checkout):
    run = setup(checkout, "echo 'ERROR: no network' >&2; exit 1")
    shown, _ = run.communicate(timeout=WAIT_S)
    assert run.returncode != 0
    assert "ERROR: no network" in shown
    assert not (checkout / ".venv" / "ready").exists()


def test_ctrl_c_ends_pip_too(checkout):
    run = setup(checkout, "echo $$ > pid; echo Collecting a; exec sleep 60")
    until = time.monotonic() + WAIT_S
    while not ((checkout / "pid").exists() and (checkout / "pid").read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    run.communicate(timeout=WAIT_S)
    assert run.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((checkout / "pid").read_text()), 0)
