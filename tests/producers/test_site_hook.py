"""The hook in an environment: jobs without `drumline run` are recorded once a policy asks for it."""

import json
import os
import subprocess
import sys
import textwrap
import time
import venv
from dataclasses import asdict
from itertools import count
from pathlib import Path

import pytest
from support.fakes.cupti import RawBuffer
from support.labs.collected import batches, rows
from support.torch_stub import TORCH

from drumline.infra.localstack.stack import wait_until
from drumline.producers.collector import attach, late, marks
from drumline.producers.control.waiting_jobs import ALIVE_S, LEFT_S, make_folder, waiting_jobs
from drumline.producers.ipc.control import ControlRequest
from drumline.producers.ipc.policy import parse
from drumline.producers.site_hook import FILE, BadEnvironment, remove_hook, site_packages, write_hook

TESTS = Path(__file__).parents[1]
#: A job: it uses CUDA, and steps until it is recorded, then ends.
JOB = """
import os, sys, time
import torch
sys.path.insert(0, os.environ["DRUMLINE_TESTS"])
from support.fakes.cupti import FakeCupti, RawBuffer
from drumline.producers.collector import attach, cupti, marks
fake, raw = FakeCupti(), RawBuffer("ddp_steps").relocate()
cupti.load, attach.prepare, marks.SCAN_S = lambda path: fake.bound(), lambda: "fake", 0.0
torch.use_cuda()
assert (attach.attached(), fake.subscribed) == (None, 0), "nothing is attached"
step = 0
while len(fake.enabled) < 5:
    attach.step(step)
    print(step, flush=True)
    step += 1
    time.sleep(0.01)
fake.play(raw.shifted(time.time_ns() - raw.span()[0], 9_000_000), raw.positions)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment with the hook, a stub of torch and a job."""
    folder = tmp_path_factory.mktemp("env")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    packages = site_packages(str(python))
    for name, text in TORCH.items():
        if name.startswith("torch"):
            path = packages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
    (folder / "train_llama.py").write_text(JOB)
    (folder / "ddp_steps").write_bytes(RawBuffer("ddp_steps").data.tobytes())
    return folder, python, packages


def variables(folder, **more):
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("DRUMLINE", "PYTHON"))}
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    return kept | {"DRUMLINE_TESTS": str(TESTS), "RAW_CUPTI_PLAIN": str(folder), "PYTHONPATH": libraries} | more


def test_a_job_of_an_environment_with_the_hook_is_recorded_when_a_policy_asks_for_it(environment, tmp_path):
    folder, python, packages = environment
    root = tmp_path / "spool"
    assert write_hook(packages, str(root)) == (packages / FILE, str(root))
    job = subprocess.Popen([python, folder / "train_llama.py"], env=variables(folder), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)  # fmt: skip
    for _ in range(20):
        assert job.stdout.readline(), job.stderr.read()
    assert waiting_jobs(root) == {"train_llama"}, "the agent passes on what is asked of this job"
    assert not list(root.glob("*/identity.json"))
    (root / "policy").write_text("always\n")
    began = time.monotonic()
    _, errors = job.communicate(timeout=300)
    print(f"attached and recorded {time.monotonic() - began:.1f} s after the policy; load {os.getloadavg()[0]:.0f}")
    assert (job.returncode, errors) == (0, "")
    (identity,) = root.glob("*/identity.json")
    # The decoder may outlive the job under load.
    assert wait_until(lambda: rows(batches(tmp_path, identity.parent)[0])["gpu.kernel.v1"] > 0, 120)
    process = json.loads(identity.read_text())["process"]
    assert (process["job"], process["rank"]) == ("train_llama", 0)
    assert waiting_jobs(root) == set(), "it is known by its records now"


def test_without_the_hook_or_with_the_switch_nothing_is_looked_for(environment, tmp_path):
    folder, python, packages = environment
    write_hook(packages, str(tmp_path))
    show = "import sys; print(any(type(f).__name__ == 'TorchImportHook' for f in sys.meta_path))"

    def hooked(**more):
        return subprocess.run([python, "-c", show], env=variables(folder, **more), capture_output=True, text=True,
                              check=True).stdout.strip()  # fmt: skip

    assert hooked() == "True"
    assert hooked(DRUMLINE_ATTACH="0") == "False"
    assert hooked(DRUMLINE_PYTHON=sys.executable) == "False", "below `drumline run`"
    assert hooked(DRUMLINE_PYTHON=sys.executable, DRUMLINE_LATE="x") == "True", "a child of a process that waits"
    assert remove_hook(packages) == packages / FILE
    assert remove_hook(packages) is None
    assert hooked() == "False"


def test_the_agents_user_of_the_installation_is_that_of_jobs_which_name_none(environment, monkeypatch):
    _, _, packages = environment
    monkeypatch.setenv("DRUMLINE_SPOOL__AGENT_USER", "drumline")
    path, root = write_hook(packages, "/s")
    assert f"({sys.executable!r}, {root!r}, 'drumline')" in path.read_text()
    job, named = {}, {"DRUMLINE_SPOOL__AGENT_USER": "0"}
    for variables_of_job in (job, named):
        late.prepare(variables_of_job, "/p", "/s", "drumline")
    assert [variables_of_job["DRUMLINE_SPOOL__AGENT_USER"] for variables_of_job in (job, named)] == ["drumline", "0"]


def test_a_place_that_is_no_environment_is_an_error(tmp_path):
    with pytest.raises(BadEnvironment, match="--into FOLDER"):
        write_hook(tmp_path / "missing")
    with pytest.raises(BadEnvironment, match="--python PATH"):
        site_packages(str(tmp_path / "python"))


def test_a_job_is_named_by_its_script_and_its_ranks_share_a_run(monkeypatch):
    launcher = {}
    monkeypatch.setattr(sys, "argv", ["/bin/torchrun"])
    late.prepare(launcher, "/p", "/s")
    assert late.is_waiting(launcher)
    assert launcher["DRUMLINE_JOB"] == "torchrun"
    monkeypatch.setattr(sys, "argv", ["train.py"])
    ranks = [dict(launcher, RANK=str(rank)) for rank in range(2)]
    for rank in ranks:
        late.prepare(rank, "/p", "/s")
    assert {rank["DRUMLINE_JOB"] for rank in ranks} == {"train"}
    assert len({rank["DRUMLINE_MINTED_RUN"] for rank in ranks}) == 1
    named = {"DRUMLINE_JOB": "llama", "DRUMLINE_COLLECT__POLICY": "auto", "DRUMLINE_RUN": "r"}
    late.prepare(named, "/p", "/s")
    assert (named["DRUMLINE_JOB"], late.is_waiting(named)) == ("llama", False)


def test_announcements_end_by_themselves(tmp_path):
    late.announce(str(tmp_path), "j")
    late.announce(str(tmp_path), "j")
    now = time.time()
    assert waiting_jobs(tmp_path, now) == {"j"}
    assert waiting_jobs(tmp_path, now + ALIVE_S + 60) == set()
    assert list((tmp_path / late.WAITING).iterdir())
    assert waiting_jobs(tmp_path, now + LEFT_S + 60) == set()
    assert not list((tmp_path / late.WAITING).iterdir())
    (tmp_path / late.WAITING / "link").symlink_to("/etc/passwd")
    assert waiting_jobs(tmp_path) == set()
    late.withdraw()
    assert waiting_jobs(tmp_path / "missing") == set()


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "old").write_text("j")
    os.utime(other / "old", (0, 0))
    (tmp_path / late.WAITING).symlink_to(other)
    make_folder(tmp_path)
    assert waiting_jobs(tmp_path) == set()
    assert (other / "old").exists()


def test_the_first_job_makes_folders_for_all_users_and_any_name_is_written(tmp_path):
    tmp_path.chmod(0o2755)
    root, before = tmp_path / "spool", os.umask(0o077)
    try:
        late.announce(str(root), "j\udc80")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o7777) for path in (root, root / late.WAITING)} == {"0o3777"}
    assert waiting_jobs(root) == {"j?"}


def test_a_job_that_waits_for_a_policy_pays_microseconds_a_step(tmp_path, monkeypatch):
    """CPU of a mark, of a look for files, and of reading one that is renewed once a second; less than 0.1 % of a step
    of 28 ms."""
    for name, text in {"LATE": "llama", "JOB": "llama", "COLLECT__POLICY": "off", "SPOOL__ROOT": tmp_path}.items():
        monkeypatch.setenv(f"DRUMLINE_{name}", str(text))
    other = ControlRequest("k", "policy", "always", "other", "", "*", (), -1, 0, 1 << 62, 1)
    (tmp_path / ".control").write_text(json.dumps([asdict(other)]))
    for name in ("at_mark", "ring", "decoder"):
        monkeypatch.setattr(marks, name, None)
    monkeypatch.setattr(attach, "ANNOUNCE_S", 0.0)
    attach._open_at_mark(parse("off"), None)
    scan = marks.at_mark

    def cpu_us(call, times):
        began = time.thread_time_ns()
        for number in range(times):
            call(number)
        return (time.thread_time_ns() - began) / times / 1e3

    states, number = attach._states, count()
    monkeypatch.setattr(attach, "_states", lambda files: (*states(files), (next(number),)))  # as if renewed
    read_us = min(cpu_us(lambda _: scan(), 20) for _ in range(9))
    monkeypatch.setattr(attach, "_states", states)
    monkeypatch.setattr(attach, "ANNOUNCE_S", 60.0)
    scan_us = min(cpu_us(lambda _: scan(), 20) for _ in range(9))
    step_us = min(cpu_us(marks.step, 500) for _ in range(9))
    second_us = read_us + scan_us / marks.SCAN_S
    print(f"waiting for a policy: {step_us:.1f} us a step, {second_us:.0f} us a second, {scan_us:.1f} us a look")
    assert waiting_jobs(tmp_path) == {"llama"}, "it read the file"
    assert step_us + second_us * 0.028 < 28


@pytest.mark.parametrize("late_job", [False, True])
def test_a_mark_reads_the_files_once_they_are_written_renewed_replaced_or_removed(tmp_path, monkeypatch, late_job):
    monkeypatch.setenv("DRUMLINE_SPOOL__ROOT", str(tmp_path))
    monkeypatch.setenv("DRUMLINE_LATE", "llama" if late_job else "")
    monkeypatch.setenv("DRUMLINE_COLLECT__POLICY", "off")
    monkeypatch.setattr(marks, "at_mark", None)
    read = []
    monkeypatch.setattr(attach, "_wanted_policy", lambda root: read.append(root) or parse("off"))
    attach._open_at_mark(parse("off"), None)

    def reads():
        before = len(read)
        for _ in range(3):
            marks.at_mark()
        return len(read) - before

    assert reads() == 1, "what is not there is no news either"
    assert reads() == 0
    control, policy = tmp_path / ".control", tmp_path / "policy"
    control.write_text("[]")
    assert reads() == 1
    # As the agent renews it; the file system's clock has ticks.
    assert wait_until(lambda: os.utime(control) or reads() == 1, 10)
    (tmp_path / "part").write_text("[]")
    (tmp_path / "part").replace(control)
    assert reads() == 1
    policy.write_text("off")
    assert reads() == 1
    policy.unlink()
    assert reads() == 1
