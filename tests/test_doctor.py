"""`drumline doctor`: findings and what to do about them."""

import json
import subprocess
import sys

from drumline.producers import checks


def test_what_recording_needs_of_this_host_is_here():
    for check in (checks.callbacks(), checks.shared_memory(), checks.reading()):
        assert check.state == checks.OK, check


def test_a_python_without_pytorch_is_a_warning_and_none_a_failure():
    (without,) = checks.job_checks(sys.executable, {})
    assert without.state in (checks.WARN, checks.OK)
    (missing,) = checks.job_checks("no-such-python", {})
    assert missing.state == checks.FAIL
    assert "--python" in missing.fix


def test_variables_that_hide_things_are_named():
    found = checks.environment_checks({"NCCL_NVTX_DISABLE": "1", "CUDA_INJECTION64_PATH": "/opt/nsight.so"})
    assert {(check.name, check.state) for check in found} == {
        ("NCCL_NVTX_DISABLE", checks.FAIL),
        ("CUDA_INJECTION64_PATH", checks.WARN),
    }
    assert all("unset" in check.fix for check in found)
    assert not checks.environment_checks({"NCCL_NVTX_DISABLE": "0"})


def test_the_spool_says_how_much_waits(tmp_path):
    assert checks.spool(tmp_path / "not" / "there").state in (checks.OK, checks.WARN)
    (tmp_path / "process").mkdir()
    (tmp_path / "process" / "000000000000.seg").write_bytes(bytes(3_000_000))
    assert "3 MB waiting" in checks.spool(tmp_path).text


def test_the_command_fails_when_something_failed_and_prints_json():
    command = [sys.executable, "-m", "drumline.infra.cli", "doctor", "--no-gpu", "--json"]
    environment = {"DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:9", "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["failed"] is True
    assert {check["name"]: check["state"] for check in found["checks"]}["Kafka"] == checks.FAIL
