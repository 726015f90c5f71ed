"""`drumline check` as a command: exit codes, JSON, and results that the agent publishes. NVML is a fake."""

import json
import os
import socket

import pytest
from support.fakes.nvml import FakeNvml, NVMLError_LibraryNotFound
from typer.testing import CliRunner

from drumline.cli.record import check
from drumline.cli.record.check import _pairs_code
from drumline.infra.config.settings import settings
from drumline.producers.nvml import sampler
from drumline.producers.pairs.evaluation import PairFinding
from drumline.producers.pairs.participant import KeyRejected
from drumline.producers.spool.directory import SpoolDirectory
from drumline.producers.spool.reader import Segment


@pytest.fixture
def nvml(monkeypatch, tmp_path):
    fake = FakeNvml(2, CurrPcieLinkWidth=16, MaxPcieLinkWidth=16, MaxClockInfo=1_980, Serial="165")
    monkeypatch.setattr(sampler, "pynvml", lambda: fake)
    monkeypatch.setenv("DRUMLINE_SPOOL__ROOT", str(tmp_path / "spool"))
    settings.cache_clear()
    yield fake
    settings.cache_clear()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return unused.getsockname()[1]


def run(*arguments):
    return CliRunner().invoke(check.app, list(arguments))


def test_a_host_that_is_well_ends_with_0_and_skips_what_it_cannot_check(nvml):
    result = run("--gpus", "2", "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["failed"]) == (0, False)
    loads = [item for item in answer["checks"] if item["name"] == "load"]
    assert [item["state"] for item in loads] == ["skipped", "skipped"], "the fake's GPUs are in use"


def test_a_missing_gpu_ends_with_1_and_states_it(nvml):
    result = run("--gpus", "8", "--no-load")
    assert result.exit_code == 1
    assert "2 of 8 GPUs answer" in result.stdout
    assert "load" not in result.stdout


def test_a_host_without_a_driver_ends_with_1(nvml):
    nvml.problem = NVMLError_LibraryNotFound("NVML Shared Library Not Found")
    assert run("--json").exit_code == 1


def test_results_are_left_for_the_agent(nvml, tmp_path):
    assert run("--gpus", "2", "--no-load", "--publish").exit_code == 0
    [folder] = [path for path in (tmp_path / "spool").iterdir() if (path / "identity.json").exists()]
    frames = list(Segment(SpoolDirectory(folder), "000000000000.seg").read(True))
    assert [frame.topic for frame in frames] == ["gpu.check.v1"] * 3


def test_a_spool_that_cannot_be_written_ends_with_2(nvml, tmp_path):
    (tmp_path / "spool").write_text("a file")
    assert run("--gpus", "2", "--no-load", "--publish").exit_code == 2


@pytest.mark.parametrize(
    ("secret", "hosts", "message"),
    [
        ("short", "a,b", "DRUMLINE_PAIRS_SECRET: set the same 16 characters or more on all hosts"),
        ("0123456789abcdef", "no-such-host-a,no-such-host-b", "is none of the hosts no-such-host-a, no-such-host-b"),
        ("0123456789abcdef", "", "no hosts are known; start it by srun or torchrun on all, or give --hosts a,b,c"),
    ],
)
def test_pairs_without_a_secret_or_hosts_end_with_2(monkeypatch, secret, hosts, message):
    for name in [*os.environ]:
        if name.startswith("SLURM") or name in ("MASTER_ADDR", "RANK", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DRUMLINE_PAIRS_SECRET", secret)
    result = run("--pairs", "--hosts", hosts)
    assert result.exit_code == 2
    assert message in result.stderr


def test_pairs_of_one_host_are_none_and_end_with_0(monkeypatch):
    monkeypatch.setenv("DRUMLINE_PAIRS_SECRET", "0123456789abcdef")
    result = run("--pairs", "--hosts", "127.0.0.1", "--json", "--port", str(free_port()))
    assert (result.exit_code, json.loads(result.stdout)["pairs"]) == (0, [])


def test_a_port_in_use_ends_with_2_and_names_it(monkeypatch):
    monkeypatch.setenv("DRUMLINE_PAIRS_SECRET", "0123456789abcdef")
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        result = run("--pairs", "--hosts", "127.0.0.1", "--port", str(port))
    assert result.exit_code == 2
    assert f"127.0.0.1 port {port}: Address already in use" in result.stderr


def test_other_processes_of_a_host_leave_the_check_to_its_first_one(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert run("--pairs").exit_code == 0


@pytest.mark.parametrize("option", [["--publish"], ["--gpus", "8"]])
def test_options_of_the_gpus_beside_pairs_end_with_2(monkeypatch, option):
    monkeypatch.setenv("DRUMLINE_PAIRS_SECRET", "0123456789abcdef")
    result = run("--pairs", "--hosts", "127.0.0.1", "--port", str(free_port()), *option)
    assert result.exit_code == 2
    assert "--publish and --gpus are not for --pairs" in result.stderr


def test_spaces_between_hosts_do_not_count(monkeypatch):
    monkeypatch.setenv("DRUMLINE_PAIRS_SECRET", "0123456789abcdef")
    result = run("--pairs", "--hosts", " 127.0.0.1 , ", "--json", "--port", str(free_port()))
    assert json.loads(result.stdout)["names"] == ["127.0.0.1"]


def test_another_secret_ends_with_2(monkeypatch):
    def reject(*_):
        raise KeyRejected("a: the other end has another secret, job or list of hosts")

    monkeypatch.setattr("drumline.producers.pairs.participant.check_pairs", reject)
    monkeypatch.setenv("DRUMLINE_PAIRS_SECRET", "0123456789abcdef")
    assert run("--pairs", "--hosts", "127.0.0.1").exit_code == 2


@pytest.mark.parametrize(
    ("finding", "codes"),
    [
        (PairFinding("slow_host", (0,), ""), (1, 0)),
        (PairFinding("slow_host", (0,), "", False), (10, 0)),
        (PairFinding("slow_link", (0, 1), ""), (10, 10)),
        (PairFinding("missing", (2,), "", False), (10, 10)),
        (PairFinding("unmeasured", (), "", False), (10, 10)),
        (PairFinding("uneven", (), "", False), (0, 0)),
    ],
)
def test_only_a_host_that_is_at_fault_ends_with_1(finding, codes):
    assert tuple(_pairs_code([finding], host) for host in (0, 1)) == codes
