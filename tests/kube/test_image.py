"""The image, built by its Dockerfile and run by podman: programs without rights, and the folder that pods get."""

import time
import tomllib
from pathlib import Path

import pytest
from support.kube import images

pytestmark = [pytest.mark.kube, pytest.mark.timeout(3000)]
ROOT = Path(__file__).parents[2]
#: As pods run it: no capability, nothing to write but /tmp.
SAFE = ("--rm", "--network", "host", "--pull", "never", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--no-healthcheck")  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    images.build()


def run(*command: str, entrypoint: str = "drumline", more: tuple[str, ...] = ()) -> str:
    return images.podman("run", *SAFE, *more, "--entrypoint", entrypoint, images.DRUMLINE, *command)


def test_programs_run_without_rights_on_a_root_that_cannot_be_written():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert version in run("--version")
    assert run("-u", entrypoint="id").strip() == "10001"
    facts = "import os; print(open('/proc/self/status').read()); print(os.access('/usr', os.W_OK))"
    status = run("-c", facts, entrypoint="python")
    assert "CapEff:\t0000000000000000" in status
    assert status.rstrip().endswith("False")


def test_what_cupti_and_nccl_call_is_in_the_image():
    code = (
        "from drumline.producers.collector.cupti import Callbacks\n"
        "from drumline.producers.nccl_profiler import library\n"
        "assert Callbacks().request; print(library.path())"
    )
    assert run("-c", code, entrypoint="python").strip().endswith("libnccl-profiler-drumline.so")


def test_the_decoder_runs_where_there_is_no_python_and_no_c_library(tmp_path):
    images.build_bare()
    folder = tmp_path / "drumline"
    folder.mkdir()
    folder.chmod(0o777)
    run("-r", "/opt/drumline/.", "/drumline", entrypoint="cp", more=("--volume", f"{folder}:/drumline"))
    code = (
        "import numpy, fastavro, sys, drumline.producers.decoder.session as session\n"
        "print(session.__file__, numpy.__file__, sys.executable)"
    )
    printed = images.podman(
        "run", "--rm", "--network", "none", "--pull", "never", "--read-only", "--volume", f"{folder}:/elsewhere:ro",
        "--env", "LD_PRELOAD=/nothing.so", images.BARE, "/elsewhere/python", "-c", code,
    )  # fmt: skip
    places = printed.split()
    assert len(places) == 3
    assert all(place.startswith("/elsewhere/") for place in places)


@pytest.mark.parametrize(("command", "codes"), [("agent", {0}), ("sink", {0, 143}), ("stream", {0, 143})])
def test_a_program_that_waits_for_kafka_ends_within_30_s_of_sigterm(command, codes):
    """As the first process of its container, which the kernel spares a signal that nothing handles."""
    environment = {
        "DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:9", "DRUMLINE_CLICKHOUSE__URL": "http://127.0.0.1:9",
        "DRUMLINE_SPOOL__ROOT": "/tmp/spool", "DRUMLINE_STREAM__DATA_DIR": "/tmp/stream",
        "DRUMLINE_METRICS_PORT": "0",
    }  # fmt: skip
    options = [option for pair in environment.items() for option in ("--env", "=".join(pair))]
    safe = [option for option in SAFE if option != "--rm"]
    name = images.podman("run", "--detach", *safe, *options, images.DRUMLINE, command).strip()
    try:
        deadline = time.monotonic() + 300
        while not images.logs(name).strip() and time.monotonic() < deadline:
            time.sleep(0.5)
        images.podman("stop", "--time", "30", name)
        assert int(images.podman("inspect", "--format", "{{.State.ExitCode}}", name)) in codes
    finally:
        images.podman("rm", "--force", name)
