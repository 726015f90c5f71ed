"""Checks of a release: wheels for two processors, for hosts without a compiler, and sums with a signature."""

import os
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest
from support.fake_nccl import FAKE, PROGRAMS, Programs, only
from support.light_job import LATE, LAUNCHER
from support.wait_limit import WAIT_S

from drumline.infra.localstack.ephemeral import free_ports
from drumline.infra.localstack.stack import wait_until

ROOT = Path(__file__).parents[2]
PROCESSORS = ("x86_64", "aarch64")
LIBRARIES = ("infra/localstack/clickhouse/_failed_writes", "producers/collector/_callbacks",
             "producers/nccl_profiler/libnccl-profiler-drumline")  # fmt: skip
#: ELF's numbers of the processors.
MACHINES = {"x86_64": 62, "aarch64": 183}
#: The aarch64 C library of Debian's cross compiler.
SYSROOT = "/usr/aarch64-linux-gnu"
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
#: How this machine reaches packages and jars.
NETWORK = {name: os.environ[name] for name in os.environ if name.upper().startswith(("PIP_", "SSL_", "HTTPS_"))}
#: Pythons of this machine that drumline can run on.
PYTHONS = sorted(
    {path.resolve() for path in Path("~/.pyenv/versions").expanduser().glob("3.1[1-9].*/bin/python3")}
    | {Path(sys.executable).resolve()}
)


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """The folder with the sdist and the wheels."""
    if subprocess.run([sys.executable, "-m", "ziglang", "version"], capture_output=True).returncode != 0:
        pytest.skip("the package ziglang is missing: make .venv/zig")
    folder, source = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if not name.startswith(("tests/", "docs/", ".typing/")) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    subprocess.run(
        [sys.executable, "infra/release/wheels.py", folder], cwd=source, check=True, stdout=subprocess.DEVNULL
    )
    return folder


def wheel_of(dist: Path, processor: str) -> Path:
    [wheel] = dist.glob(f"drumline-*-py3-none-manylinux_2_17_{processor}.whl")
    return wheel


def text_of(page: str) -> str:
    try:
        with urllib.request.urlopen(page, timeout=WAIT_S) as answer:
            return answer.read().decode()
    except HTTPError as error:
        return f"{error.code}"


@pytest.mark.long
@pytest.mark.parametrize("processor", PROCESSORS)
def test_libraries_are_for_the_wheels_processor_and_the_oldest_c_library(dist, processor):
    with zipfile.ZipFile(wheel_of(dist, processor)) as wheel:
        for name in LIBRARIES:
            content = wheel.read(f"drumline/{name}.so")
            assert content[:4] == b"\x7fELF"
            assert int.from_bytes(content[18:20], "little") == MACHINES[processor]
            needed = {tuple(map(int, text.split(b"."))) for text in re.findall(rb"GLIBC_(\d+\.\d+)", content)}
            assert needed
            assert max(needed) <= (2, 17)


@pytest.mark.long
def test_the_plugin_for_aarch64_records_as_the_one_for_this_processor(dist, tmp_path):
    if EMULATOR is None or not Path(SYSROOT).is_dir():
        pytest.skip("apt-get install qemu-user-static libc6-arm64-cross")
    with zipfile.ZipFile(wheel_of(dist, "aarch64")) as wheel:
        plugin = wheel.extract(f"drumline/{LIBRARIES[2]}.so", tmp_path)
    fake = tmp_path / "fake-aarch64"
    compiler = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.31", "-O1", "-std=gnu11"]
    subprocess.run([*compiler, "-rdynamic", "-o", fake, PROGRAMS / "fake_nccl.c", *FAKE[:2]], check=True)
    programs = Programs(tmp_path)
    for scenario in ("one", "threads", "marks", "graph", "drift", "churn"):
        rings = {processor: tmp_path / f"{scenario}-{processor}" for processor in PROCESSORS}
        environment = {"DRUMLINE_RINGS__FOLDER": str(rings["aarch64"]), "PATH": os.environ["PATH"]}
        command = [EMULATOR, "-L", SYSROOT, fake, plugin, "6", scenario]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)
        assert (done.returncode, done.stderr) == (0, "")
        assert programs.run(scenario, 6, rings["x86_64"]).returncode == 0
        emulated, native = only(rings["aarch64"]), only(rings["x86_64"])
        names = ["kind", "function", "datatype", "sequence", "count", "peer", "channels", "gpu_stop_ns"]
        if scenario != "threads":  # there steps begin beside the calls
            names.append("step")
        assert len(native.records) > 1
        assert sorted(emulated.records[names].tolist()) == sorted(native.records[names].tolist())
        for field in ("interface", "written", "dropped", "unknown", "comms", "captured", "ended"):
            assert emulated.header[field] == native.header[field]


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.name)
def test_a_wheel_alone_installs_on_each_python_without_a_compiler(dist, tmp_path, python):
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    installed = tmp_path / "venv" / "bin" / "python"
    environment = {"PATH": str(installed.parent), "HOME": str(tmp_path), "LANG": "C.UTF-8", **NETWORK}
    subprocess.run([installed, "-m", "pip", "install", "-q", wheel_of(dist, "x86_64")], env=environment, check=True)
    code = (
        "from drumline.producers.collector import cupti; from drumline.producers.nccl_profiler import library\n"
        "import os; os.environ[library.FOLDER_VARIABLE] = 'rings'; cupti._built()\n"
        "assert library.mark(library.STEP_MARK, 7), library.path()"
    )
    subprocess.run([installed, "-c", code], env=environment, cwd=tmp_path, check=True)
    assert only(tmp_path / "rings").records["sequence"].tolist() == [7]
    shown = subprocess.run([installed.with_name("drumline"), "--help"], env=environment, capture_output=True, text=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "demo" in shown.stdout


@pytest.mark.long
@pytest.mark.stack
def test_two_commands_lead_from_a_wheel_to_the_page_of_a_job_without_java_and_compiler(dist, tmp_path):
    """`pip install`, then `drumline run --local`; `down` leaves no process."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs, port = tmp_path / "venv" / "bin", free_ports(1)[0]
    kafka, http = free_ports(2)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "sleep", "env", "cat", "kill"):
        (tools / name).symlink_to(shutil.which(name))
    environment = {
        "PATH": f"{programs}:{tools}", "HOME": str(tmp_path), "LANG": "C.UTF-8", "DRUMLINE_SERVE__PORT": str(port),
        "DRUMLINE_LOCAL__KAFKA_PORT": str(kafka), "DRUMLINE_LOCAL__CLICKHOUSE_HTTP_PORT": str(http),
        **NETWORK,
    }  # fmt: skip

    def run(*command):
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)

    locked = ROOT / "infra" / "requirements" / "all.txt"
    installed = run(programs / "pip", "install", "-q", "--no-deps", "--require-hashes", "-r", locked)
    assert installed.returncode == 0, installed.stderr
    assert run(programs / "pip", "install", "-q", f"{wheel_of(dist, 'x86_64')}[all]").returncode == 0
    fake = Programs(tmp_path).folder / "fake-plain"
    launch = ("--policy", "light", "--job", "mine", "--", "sh", "-c", LAUNCHER, fake, "host")
    job = run(programs / "drumline", "run", "--local", *launch)
    try:
        assert job.returncode == 0, job.stderr
        assert f"http://127.0.0.1:{port}/job/mine shows the job" in job.stderr
        page = f"http://127.0.0.1:{port}/job/mine"
        assert wait_until(lambda: f"rank {LATE}" in text_of(page), WAIT_S), text_of(page)
    finally:
        assert run(programs / "drumline", "down").stdout == "stopped\n"
    assert [p.cmdline() for p in psutil.process_iter() if str(programs) in " ".join(p.cmdline())] == []


def test_the_sums_hold_every_file_and_are_signed_by_the_key_of_the_environment(tmp_path):
    files = tmp_path / "dist"
    (files / "grafana").mkdir(parents=True)
    (files / "a.whl").write_text("a")
    (files / "grafana" / "b.json").write_text("b")
    key = tmp_path / "key"
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    make = ["make", "--no-print-directory", "--file", ROOT / "Makefile", "sums"]
    plain = subprocess.run(make, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert plain.stdout == "the sums are not signed: RELEASE_KEY names no key\n"
    subprocess.run(make, cwd=tmp_path, env={**os.environ, "RELEASE_KEY": str(key)}, check=True)
    sums = (files / "SHA256SUMS").read_text()
    assert [line.split()[1] for line in sums.splitlines()] == ["a.whl", "grafana/b.json"]
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=files, check=True, capture_output=True)
    (tmp_path / "signers").write_text(f"release {key.with_suffix('.pub').read_text()}")
    verify = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        tmp_path / "signers",
        "-I",
        "release",
        "-n",
        "drumline",
        "-s",
        files / "SHA256SUMS.sig",
    ]
    assert subprocess.run(verify, input=sums, text=True, capture_output=True).returncode == 0
    assert subprocess.run(verify, input=sums + "x", text=True, capture_output=True).returncode != 0
