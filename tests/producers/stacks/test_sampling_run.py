"""Real processes are sampled without a stop, and only those that may be."""

import os
import subprocess
import sys
import time

import pytest
from support.labs.python_jobs import python_job, started_ns

from drumline.producers.host.gil import GilPoll, is_waiting, static_memory
from drumline.producers.host.targets import RecordedProcess
from drumline.producers.stacks import sampling_run
from drumline.producers.stacks.permission import Denied, NoProcess, Subject, may_trace_all, subject
from drumline.producers.stacks.sampling_run import NoPySpy, Recording, SamplingFailed, py_spy


def recorded(pid, length_s=1):
    recording = Recording(Subject.of(pid), py_spy(), length_s)
    until = time.monotonic() + length_s
    while time.monotonic() < until:
        recording.poll()
        time.sleep(0.02)
    [whole] = recording.finish()
    return whole


def test_a_thread_that_waits_for_the_gil_is_seen_beside_the_one_that_holds_it(tmp_path):
    with python_job(tmp_path, "gil") as job:
        seen = recorded(job.pid)
    main = next(row for row in seen.stacks.rows if row.is_main)
    holder = max(seen.stacks.rows, key=lambda row: row.gil_samples)
    assert (main.caller, holder.thread) == (f"train ({job.path}:11)", "tokenizer")
    assert holder.caller == f"tokenize ({job.path}:7)"
    assert seen.gil_polls > 10
    assert seen.gil_waiting > 5, "of a thread that is runnable, on a loaded host, nothing is known"


@pytest.mark.parametrize(("kind", "line"), [("sleep", 4), ("lock", 10)])
def test_a_thread_that_sleeps_or_waits_for_a_lock_does_not_wait_for_the_gil(tmp_path, kind, line):
    with python_job(tmp_path, kind) as job:
        time.sleep(0.3)
        poll = GilPoll(job.pid)
        for _ in range(20):
            poll.poll()
        seen = recorded(job.pid) if kind == "sleep" else None
    assert (poll.polls, poll.waiting) == (20, 0)
    if seen is not None:
        assert [(row.is_main, row.caller) for row in seen.stacks.rows] == [(True, f"load ({job.path}:{line})")]


def test_static_memory_is_the_interpreters_and_what_follows_it_without_a_name():
    maps = (
        "1000-2000 r-xp 00000000 fe:00 1 /usr/lib/libpython3.12.so.1.0\n"
        "2000-3000 rw-p 00000000 fe:00 1 /usr/lib/libpython3.12.so.1.0\n"
        "3000-4000 rw-p 00000000 00:00 0 \n"
        "5000-6000 rw-p 00000000 00:00 0 [heap]\n"
        "7000-8000 rw-p 00000000 fe:00 2 /usr/lib/libc.so.6\n"
    )
    assert static_memory(maps) == [(0x2000, 0x4000)]
    assert is_waiting("202 0x3f00 0x189 0x0 0x7f 0x0 0x0 0x7 0x7", static_memory(maps), 202)
    assert not is_waiting("202 0x5000 0x189 0x0", static_memory(maps), 202)
    assert not is_waiting("running", static_memory(maps), 202)
    assert not is_waiting("230 0x3f00", static_memory(maps), 202)


def test_no_process_and_one_without_python_fail_without_a_trace(tmp_path):
    with pytest.raises(NoProcess):
        Subject.of(2**22 + 1)
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(SamplingFailed, match="py-spy ended with 1"):
                recorded(process.pid)
        finally:
            process.kill()


def test_what_the_kernel_does_not_allow_states_what_would():
    assert "ptrace_scope" in str(sampling_run._failure(1, "Permission Denied: Try running again with sudo"))
    assert isinstance(sampling_run._failure(1, "Caused by: No such file or directory"), NoProcess)


def test_without_py_spy_the_message_has_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoPySpy, match=r"pip install 'drumline\[gpu\]'"):
        py_spy()


def local(pid, user, start_ns=None):
    return RecordedProcess({"pid": pid, "start_ns": started_ns(pid) if start_ns is None else start_ns}, pid, user)


def test_a_process_of_the_agents_user_is_sampled_and_one_of_another_user_is_not():
    pid, user = os.getpid(), os.geteuid()
    assert subject(local(pid, user), user, may_all=False).pid == pid
    with pytest.raises(Denied, match="CAP_SYS_PTRACE"):
        subject(local(pid, user), user + 1, may_all=False)
    assert subject(local(pid, user), user + 1, may_all=True).user == user


@pytest.mark.parametrize("writer", [-1, 12_345])
def test_records_of_one_user_do_not_name_a_process_of_another_not_even_for_root(writer):
    with pytest.raises(NoProcess, match=f"of user {writer}"):
        subject(local(os.getpid(), writer), 0, may_all=True)


def test_a_process_that_started_after_its_records_is_another_one():
    with pytest.raises(NoProcess):
        subject(local(os.getpid(), os.geteuid(), start_ns=1), os.geteuid(), may_all=False)


def test_the_capability_is_read_from_the_status_of_the_process(tmp_path):
    for mask, expected in (("0000000000080000", True), ("00000000a80425fb", False), ("zz", False)):
        (tmp_path / "self").mkdir(exist_ok=True)
        (tmp_path / "self" / "status").write_text(f"Name:\tx\nCapEff:\t{mask}\n")
        assert may_trace_all(tmp_path) is expected
