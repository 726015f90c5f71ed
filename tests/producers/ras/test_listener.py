"""RAS of a job listens at a socket that a process of the job holds, and is searched nowhere else."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.fakes import fake_ras
from support.fakes.fake_ras import FakeRas

from drumline.producers.host.targets import RecordedProcess, start_ticks
from drumline.producers.ras.listener import MOST_PROCESSES, ras_listeners


def address_of(processes):
    listener = next(ras_listeners(processes), None)
    return listener and listener.address


def recorded(pid, **record):
    ticks = start_ticks(Path(f"/proc/{pid}"))
    return RecordedProcess({"job": "j", "run": "r", "rank": 0, "pid": pid, **record}, pid, os.geteuid(), ticks)


@contextmanager
def rank(port, *, inside=(), **variables):
    """A process of a job, whose environment has `variables`."""
    environment = {"PATH": os.environ["PATH"], **variables}
    command = [*inside, sys.executable, fake_ras.__file__, str(port), "{}"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "listens\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("address", ["localhost:28931", "[::1]:28931", "elsewhere.example:28931"])
def test_the_port_is_the_environments_and_the_address_the_sockets(address):
    with rank(28931, NCCL_RAS_ADDR=address) as pid:
        assert address_of([recorded(pid)]) == ("127.0.0.1", 28931)


def test_a_port_that_another_job_has_is_not_this_jobs():
    with FakeRas() as other, rank(28932, NCCL_RAS_ADDR=f"localhost:{other.address[1]}") as pid:
        assert address_of([recorded(pid)]) is None
        assert address_of([recorded(pid), recorded(os.getpid())]) is None, "this process names no port"


def test_the_process_of_a_job_that_has_the_port_is_searched_among_all():
    with rank(28933, NCCL_RAS_ADDR="localhost:28934") as first, rank(28934, NCCL_RAS_ADDR="localhost:28934") as second:
        assert address_of([recorded(first)]) is None
        assert address_of([recorded(first), recorded(second)]) == ("127.0.0.1", 28934)


@pytest.mark.parametrize(
    "variables", [{"NCCL_RAS_ENABLE": "0"}, {"NCCL_RAS_ADDR": "localhost"}, {"NCCL_RAS_ADDR": ":x"}]
)
def test_a_job_without_ras_or_with_a_bad_address_has_no_listener(variables):
    with rank(28935, **variables) as pid:
        assert address_of([recorded(pid)]) is None


def test_processes_that_ended_or_are_others_are_left_out():
    with rank(28936, NCCL_RAS_ADDR="localhost:28936") as pid:
        process = recorded(pid)
        assert address_of([RecordedProcess(process.record, pid, os.geteuid() + 1, process.start_ticks)]) is None
    assert address_of([process]) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_job_in_a_network_of_its_own_is_not_read():
    with rank(28937, inside=("unshare", "--net"), NCCL_RAS_ADDR="localhost:28937") as pid:
        assert address_of([recorded(pid)]) is None


def test_the_process_that_listens_is_known_and_a_large_environment_is_not_read_whole(monkeypatch):
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: pytest.fail("read whole") if path.name == "environ" else path.open("rb").read()
    )
    with rank(28938, NCCL_RAS_ADDR="localhost:28938") as pid:
        process = recorded(pid)
        assert list(ras_listeners([process])) == [(process, ("127.0.0.1", 28938))]


def test_another_user_who_states_the_run_often_does_not_hide_the_one_that_listens():
    with rank(28939, NCCL_RAS_ADDR="localhost:28939") as pid:
        process = recorded(pid)
        stated = RecordedProcess(process.record, 1 << 22, os.geteuid() + 1, 1)
        listeners = list(ras_listeners([*[stated] * (MOST_PROCESSES + 1), process, process]))
    assert listeners == [(process, ("127.0.0.1", 28939))], "once for each user"
