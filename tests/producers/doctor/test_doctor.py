"""`drumline doctor`: findings and remedies."""

import fcntl
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.labs.spool import KERNEL, PROCESS, body
from typer.testing import CliRunner

from drumline.cli.record import doctor as command_doctor
from drumline.infra.config.agent_settings import AgentSettings
from drumline.infra.config.settings import Settings, SpoolSettings
from drumline.producers.agent.cursor import Cursor
from drumline.producers.doctor import checks, kept_checks, nccl_checks
from drumline.producers.doctor import spool_checks as checks_spool
from drumline.producers.rings.ring_file import LAYOUT, MAGIC, HeaderField
from drumline.producers.rollup.folder import ROWS, KeptFolder
from drumline.producers.spool import quota
from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter

GB = 1 << 30
LIVE_RING = {HeaderField.MAGIC: MAGIC, HeaderField.VERSION: LAYOUT, HeaderField.INTERFACE: 5}


def test_this_host_has_what_recording_needs():
    for check in (checks.callbacks(), checks.shared_memory(), checks.reading()):
        assert check.state == checks.OK, check


@pytest.mark.parametrize(
    ("version", "state", "text"),
    [
        (0, checks.WARN, "not there"),
        (22105, checks.WARN, "2.21.5 has no interface for profilers: no collectives without CUPTI"),
        (22605, checks.WARN, "2.26.5: its profiler interface 3 has no GPU times: nothing is recorded without CUPTI"),
        (22703, checks.OK, "2.27.3: profiler interface 4, with GPU times, but none in communicators with all_to_all"),
        (22809, checks.OK, f"2.28.9: profiler interface 5, with GPU times, {checks.WITHOUT_TIMES[2, 28]}"),
        (23100, checks.OK, f"2.31.0: profiler interface 6, with GPU times, {checks.WITHOUT_TIMES[2, 29]}"),
    ],
)
def test_the_interface_of_nccl_is_known_from_its_version(version, state, text):
    check = checks.nccl(version)
    assert (check.state, check.text[: len(text)], bool(check.fix)) == (state, text, state != checks.OK)


def test_drumlines_plugin_is_there_and_the_users_is_tried(tmp_path):
    built = nccl_checks.plugin()
    assert (built.state, built.text.partition(": ")[2]) == (
        checks.OK,
        "interfaces v1, v2, v3, v4, v5, v6, v7; other libraries stay unseen",
    )
    path = nccl_checks.library.path()
    copy = shutil.copy(path, str(tmp_path / "libnccl-profiler-x.so"))
    no_plugin = "libm.so.6"
    for name, state, text in (
        (path, None, ""),  # below `drumline run`, without one of the user's
        ("none", None, ""),
        (copy, checks.OK, "gets every call too, interfaces v1, v2"),
        ("nowhere", checks.WARN, "nowhere cannot be loaded, drumline runs without it"),
        (no_plugin, checks.WARN, "libm.so.6 is no profiler of NCCL"),
        ("STATIC_PLUGIN", checks.OK, "linked into the job gets every call too"),
    ):
        results = nccl_checks.users_plugin({"NCCL_PROFILER_PLUGIN": name})
        assert [check.state for check in results] == ([state] if state else [])
        assert all(text in check.text for check in results)
    (chained,) = nccl_checks.users_plugin({"NCCL_PROFILER_PLUGIN": path, "DRUMLINE_RINGS__CHAIN": "nowhere"})
    assert chained.text.startswith("nowhere")


@pytest.mark.parametrize(
    ("numbers", "state", "text"),
    [
        ({}, checks.OK, "1 processes write, NCCL's interface 5"),
        ({HeaderField.DROPPED: 3}, checks.WARN, "3 operations met a full ring"),
        ({HeaderField.INTERFACE: 3}, checks.WARN, "below 4 it has no GPU times"),
        ({HeaderField.MAGIC: 1}, checks.OK, "no process writes there now"),
        ({HeaderField.VERSION: 99}, checks.OK, "no process writes there now"),
    ],
)
def test_rings_of_running_processes_are_counted_with_what_they_lost(tmp_path, numbers, state, text):
    header = np.zeros(512, "<u8")
    for field, value in {**LIVE_RING, **numbers}.items():
        header[field] = value
    path = tmp_path / "1-1.ring"
    path.write_bytes(header.tobytes())
    (tmp_path / "2-1.ring").symlink_to("/dev/zero")
    (tmp_path / "3-1.ring").write_bytes(b"short")
    before = nccl_checks.rings(tmp_path)
    is_ring = text != "no process writes there now"
    assert (before.state, "1 processes have ended" in before.text) == (checks.WARN if is_ring else checks.OK, is_ring)
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        check = nccl_checks.rings(tmp_path)
    assert (check.state, bool(check.fix)) == (state, state != checks.OK)
    assert text in check.text


def test_a_python_without_pytorch_is_a_warning_and_none_a_failure():
    (without,) = checks.job_checks(sys.executable, {})
    assert without.state in (checks.WARN, checks.OK)
    (missing,) = checks.job_checks("no-such-python", {})
    assert missing.state == checks.FAIL
    assert "--python" in missing.fix


@pytest.mark.parametrize(
    ("answer", "name", "state"),
    [
        ({"torch": "", "nccl": 0}, "job's Python", checks.WARN),
        ({}, "CUPTI", checks.FAIL),
        ({"cupti": ["/a/libcupti.so.13", "/b/libcupti.so.12"], "enable": 0}, "CUPTI", checks.FAIL),
        ({"cupti": ["/a/libcupti.so.13"], "enable": 39}, "CUPTI", checks.FAIL),
        ({"cupti": ["/a/libcupti.so.13"]}, "CUPTI", checks.WARN),
        ({"cupti": ["/a/libcupti.so.13"], "enable": 0, "version": 130000}, "CUPTI", checks.WARN),
        ({"cupti": ["/a/libcupti.so.13"], "enable": 0, "version": 130001}, "CUPTI", checks.WARN),
        ({"cupti": ["/a/libcupti.so.13"], "enable": 0, "version": 130401}, "CUPTI", checks.OK),
    ],
)
def test_each_fault_of_the_jobs_python_has_a_remedy(tmp_path, answer, name, state):
    probed = {"torch": "2.11", "cuda": "13.0", "cupti": [], "enable": None, "devices": 1, "nccl": 22809, **answer}
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{json.dumps(probed)}'\necho goodbye\n")
    python.chmod(0o755)
    last = checks.job_checks(str(python), {})[-1]
    assert (last.name, last.state) == (name, state)
    assert bool(last.fix) == (state != checks.OK)


def test_a_python_that_fails_and_a_check_that_does_are_findings(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ImportError: libtorch.so' >&2; exit 1\n")
    python.chmod(0o755)
    (result,) = checks.job_checks(str(python), {})
    assert (result.state, "libtorch.so" in result.text) == (checks.FAIL, True)
    for text in ("", "echo hello", "echo '{\"torch\": oops'"):
        python.write_text(f"#!/bin/sh\n{text}\n")
        (silent,) = checks.job_checks(str(python), {})
        assert (silent.state, "--python" in silent.fix) == (checks.FAIL, True)
    python.write_text("#!/nowhere\n")
    assert checks.job_checks(str(python), {})[0].state == checks.FAIL
    broken = checks.safely("this", lambda: {}["absent"])
    for check in (result, broken, *checks.host_checks()):
        assert check.state == checks.OK or check.fix, check


def test_an_invalid_policy_is_reported(tmp_path):
    assert checks_spool.policy(tmp_path) == []
    (tmp_path / "policy").write_text("always\n")
    assert [check.state for check in checks_spool.policy(tmp_path)] == [checks.OK]
    (tmp_path / "policy").write_text("sometimes\n")
    (result,) = checks_spool.policy(tmp_path)
    assert (result.state, "sometimes" in result.text) == (checks.FAIL, True)


def test_variables_that_hide_things_are_named():
    result = checks.environment_checks({"NCCL_NVTX_DISABLE": "1", "CUDA_INJECTION64_PATH": "/opt/nsight.so"})
    assert {(check.name, check.state) for check in result} == {
        ("NCCL_NVTX_DISABLE", checks.FAIL),
        ("CUDA_INJECTION64_PATH", checks.WARN),
    }
    assert all("unset" in check.fix for check in result)
    assert not checks.environment_checks({"NCCL_NVTX_DISABLE": "0"})


def test_the_spools_fill_and_its_agent_are_reported(tmp_path):
    assert checks_spool.spool(tmp_path / "not" / "there", GB).state in (checks.OK, checks.WARN)
    (tmp_path / "process").mkdir()
    for name in ("000000000000.taken", "000000000001.seg"):
        (tmp_path / "process" / name).write_bytes(bytes(1_500_000))
    (tmp_path / "process" / "000000000002.seg").symlink_to(tmp_path / "gone")  # as one that the agent deletes just now
    agent = Cursor(tmp_path)
    assert "3 of at most" in checks_spool.spool(tmp_path, GB).text
    assert "no agent" not in checks_spool.spool(tmp_path, GB).text
    agent.close()
    for _ in range(2):
        result = checks_spool.spool(tmp_path, GB)
        assert (result.state, "no agent serves it" in result.text) == (checks.WARN, True)
        shutil.rmtree(tmp_path / ".agent", ignore_errors=True)


def test_a_spools_losses_and_a_full_file_system_are_reported(tmp_path, monkeypatch):
    agent = Cursor(tmp_path)
    spool = SpoolWriter(tmp_path, PROCESS, SpoolLimits(max_bytes=65_536, segment_bytes=8_000))
    for sequence in range(100):
        spool.append(KERNEL, "k", body(sequence), 10)
    result = checks_spool.spool(tmp_path, GB)
    lost = f"{spool.dropped[KERNEL]:,} rows were evicted"
    assert (result.state, lost in result.text, spool.dropped[KERNEL] > 0) == (checks.WARN, True, True), result
    agent.close()
    disk = SimpleNamespace(f_blocks=100, f_bavail=24, f_frsize=120_000)
    monkeypatch.setattr(quota.os, "statvfs", lambda path: disk)
    result = checks_spool.spool(tmp_path, GB)
    assert "of at most 2 MB waiting" in result.text
    assert (result.state, "free some space" in result.fix) == (checks.WARN, True)


#: Mode of the root, users of root, agent and of a folder (1: of these tests), what is found.
@pytest.mark.parametrize(("mode", "users", "text"), [
    (0o1777, (0, 0, 0), ""),
    (0o1777, (1, 1, 1), ""),
    (0o3777, (2, 2, 1), ""),
    (0o777, (0, 0, 0), "not sticky"),
    (0o1777, (3, 2, 2), "belongs to user 3, who may delete"),
    (0o1777, (2, 2, 1), "user 2, can publish its own"),
    (0o3777, (0, 2, 1), "user 2, can publish its own"),
])  # fmt: skip
def test_rights_of_the_root_by_which_users_can_harm_each_other_are_reported(tmp_path, monkeypatch, mode, users, text):
    root = tmp_path / "root"
    by_path = dict(zip((root, root / ".agent", root / "p0-00000000"), users, strict=True))
    for path in by_path:
        path.mkdir()
    root.chmod(mode)
    lstat = os.lstat

    def about(path, **_):
        return os.stat_result([*(known := list(lstat(path)[:10]))[:4], by_path.get(path, 0), *known[5:]])

    monkeypatch.setattr(Path, "stat", about)
    monkeypatch.setattr(Path, "lstat", about)
    reason = checks_spool.unsafe(root)
    assert (text in reason[0] and str(root) in reason[1]) if text else reason is None


def lay(folder, state):
    """Put something in the place of the folder of kept rows."""
    elsewhere = folder.with_name("elsewhere")
    if state == "a link":
        elsewhere.mkdir()
        folder.symlink_to(elsewhere)
    elif state == "a file":
        folder.write_text("")
    elif state == "below a file":
        folder.parent.write_text("")
    elif state:
        KeptFolder(folder, "node-1").close()
        (folder / "node-1" if state == "its own, open to all" else folder).chmod(0o700 if state == "whole" else 0o777)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("", ""), ("whole", ""), ("a link", "is a link"), ("a file", "is a link or a file"),
        ("below a file", "may not write in"), ("open to all", "written by others"),
        ("its own, open to all", "node-1 may be written by others"),
    ],
)  # fmt: skip
def test_the_folder_of_kept_rows_fails_where_the_agent_would(tmp_path, state, text):
    folder = tmp_path / "above" / "kept"
    (tmp_path if state == "below a file" else folder.parent).mkdir(exist_ok=True)
    lay(folder, state)
    before = sorted(tmp_path.rglob("*"))
    check = kept_checks.kept_rows(folder, "node-1", GB, tmp_path / "no-spool")
    assert sorted(tmp_path.rglob("*")) == before, "nothing is created"
    assert (check.state == checks.FAIL, text in check.text) == (bool(text), True), check
    try:
        KeptFolder(folder, "node-1").close()
    except OSError:
        assert text
    else:
        assert not text


def test_room_for_kept_rows_is_asked_of_the_disk(tmp_path, monkeypatch):
    KeptFolder(tmp_path / "kept", "node-1").close()
    (tmp_path / "kept" / "node-1" / ROWS / "one").write_bytes(bytes(3_000_000))
    place = tmp_path / "kept", "node-1", 16_000_000
    check = kept_checks.kept_rows(*place, tmp_path / "no-spool")
    assert (check.state, "3 of at most 16 MB" in check.text) == (checks.OK, True), check
    check = kept_checks.kept_rows(*place, tmp_path)
    assert (check.state, "spool's file system" in check.text, "on a disk" in check.fix) == (checks.WARN, True, True)
    for free, state in ((13_000_000, checks.OK), (12_999_999, checks.WARN)):
        disk = SimpleNamespace(f_blocks=100, f_bavail=free, f_frsize=1)
        monkeypatch.setattr(kept_checks.os, "statvfs", lambda path, disk=disk: disk)
        check = kept_checks.kept_rows(*place, tmp_path / "no-spool")
        assert (check.state, "DRUMLINE_AGENT__KEPT_MB" in check.fix) == (state, state == checks.WARN), check


@pytest.mark.parametrize(
    ("owner", "mode", "text"),
    [(4_001, 0o700, ""), (0, 0o700, "user 4001, the agent's, may not write"), (5_001, 0o700, "belongs to user 5001")],
)
def test_kept_rows_belong_to_the_user_whose_agent_served_the_spool(tmp_path, owner, mode, text):
    if os.geteuid():
        pytest.skip("only root can give files away")
    (tmp_path / ".agent").mkdir()
    os.chown(tmp_path / ".agent", 4_001, 4_001)
    folder = tmp_path / "kept"
    folder.mkdir(mode=mode)
    os.chown(folder, owner, owner)
    check = kept_checks.kept_rows(folder, "node-1", 1, tmp_path)
    assert (check.state == checks.FAIL, text in check.text) == (bool(text), True), check


def test_the_command_fails_when_something_failed_and_prints_json(monkeypatch, tmp_path):
    monkeypatch.setattr(command_doctor, "kafka", lambda: ("fail", "no broker", "start one"))
    monkeypatch.setattr(command_doctor, "settings", lambda: Settings(spool=SpoolSettings(root=tmp_path)))
    done = CliRunner().invoke(command_doctor.app, ["--no-gpu", "--json"])
    result = json.loads(done.stdout)
    assert (done.exit_code, result["failed"]) == (1, True)
    assert {check["name"]: check["state"] for check in result["checks"]}["Kafka"] == checks.FAIL
    done = CliRunner().invoke(command_doctor.app, ["--no-gpu"])
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, "1 of 2 checks failed")
    assert "to do: start one" in done.stdout
    monkeypatch.setattr(command_doctor, "kafka", lambda: ("ok", "all topics are there", ""))
    assert CliRunner().invoke(command_doctor.app, ["--no-gpu"]).exit_code == 0
    (tmp_path / "kept").write_text("")
    kept = Settings(spool=SpoolSettings(root=tmp_path), agent=AgentSettings(kept_folder=tmp_path / "kept"))
    monkeypatch.setattr(command_doctor, "settings", lambda: kept)
    done = CliRunner().invoke(command_doctor.app, ["--no-gpu", "--json"])
    assert done.exit_code == 1
    assert [check["name"] for check in json.loads(done.stdout)["checks"]] == ["spool", "kept rows", "Kafka"]
