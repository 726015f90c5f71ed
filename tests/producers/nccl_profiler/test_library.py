"""The plugin that was built with drumline, as the job's Python uses it."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_nccl import only
from support.wait_limit import WAIT_S

from drumline.producers.nccl_profiler import library
from drumline.producers.rings.ring_file import mark_names


def run(program: str, folder: Path | None) -> str:
    variables = {} if folder is None else {library.FOLDER_VARIABLE: str(folder)}
    command = [sys.executable, "-c", f"from drumline.producers.nccl_profiler import library\n{program}"]
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True, timeout=WAIT_S
    ).stdout.strip()


def test_marks_of_the_job_come_before_nccl_and_into_the_file_of_its_plugin(tmp_path):
    program = (
        "print(library.mark(library.STEP_MARK, 3, count=1), library.mark(library.RANGE_BEGIN, 9, 'é' * 40))\n"
        "import ctypes; nccl = ctypes.CDLL('libnccl-profiler-drumline.so')\n"  # as NCCL opens it, found by its SONAME
        "print(nccl.drumline_mark(2, ctypes.c_int64(4), None, ctypes.c_uint64(0)), library.captured())"
    )
    assert run(program, tmp_path) == "True True\n0 0"
    ring = only(tmp_path)
    assert ring.records["kind"].tolist() == [library.STEP_MARK, library.RANGE_BEGIN, library.STEP_MARK]
    assert ring.records["step"].tolist() == [3, 3, 4]
    assert ring.records["count"].tolist() == [1, 0, 0]
    assert ring.name(1) == "é" * 16


def test_a_mark_of_a_step_carries_the_sums_of_the_step_before(tmp_path):
    run("library.mark(library.STEP_MARK, 3, '64,c8,a,1', 1)", tmp_path)
    ring = only(tmp_path)
    assert mark_names(ring.records[:1]) == ["64,c8,a,1"]
    assert ring.records["count"].tolist() == [1]


def test_the_file_is_locked_while_its_process_lives_and_by_none_of_its_children(tmp_path):
    program = (
        "import fcntl, os\n"
        "library.mark(2, 1)\n"
        f"path = {str(tmp_path)!r} + '/' + os.listdir({str(tmp_path)!r})[0]\n"
        "def is_locked():\n"
        "    file = open(path)\n"
        "    try: return bool(fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB))\n"
        "    except BlockingIOError: return True\n"
        "child = os.fork()\n"
        "if not child: os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "os.closerange(3, 99)\n"  # as a job that makes itself a daemon
        "print(is_locked())\n"
        "forked = os.fork()\n"
        "if not forked: import time; os.closerange(0, 99); time.sleep(60); os._exit(0)\n"  # it outlives its parent
        "print(forked, flush=True); os._exit(0)"
    )
    answer, child = run(program, tmp_path).split()
    try:
        with next(tmp_path.glob("*.ring")).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(int(child), signal.SIGKILL)
    assert answer == "True"


def test_recording_is_switched_off_where_a_mark_has_room_and_on_always(tmp_path):
    assert run("print(library.record(False), library.record(True))", tmp_path / "empty") == "True True"
    assert only(tmp_path / "empty").records["kind"].tolist() == [library.RECORD] * 2
    full = "while library.mark(2, 1): pass\nprint(library.record(False), library.record(True))"
    assert run(full, tmp_path / "full") == "False True"
    assert only(tmp_path / "full").header["paused"] == 0


@pytest.mark.parametrize(
    "program", ["library.mark(2, 1)", "library.record(False)", "library.captured()", "library.load()"]
)
def test_without_a_folder_the_plugin_is_not_even_loaded(program):
    check = "any('nccl-profiler' in line for line in open('/proc/self/maps'))"
    assert run(f"print({program} or None, {check})", None) == "None False"


def test_without_the_built_plugin_marks_do_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(library, "LIBRARY", "missing.so")
    library.load.cache_clear()
    assert (library.path(), library.mark(2, 1), library.captured(), library.record(False)) == (None, False, 0, False)
    library.load.cache_clear()
    assert list(tmp_path.iterdir()) == []
