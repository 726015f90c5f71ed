"""One host, one command: `drumline run --local` starts everything, the job has its page, and `down` ends it all."""

import subprocess
import sys
import urllib.request
from urllib.error import HTTPError

import psutil
import pytest
from support.fake_nccl import Programs
from support.light_job import LATE, LAUNCHER
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import SpoolSettings
from drumline.infra.config.state_dir import State, read_json
from drumline.infra.localstack.ephemeral import ephemeral_settings, free_ports
from drumline.infra.localstack.processes import PROGRAMS, STACK
from drumline.infra.localstack.stack import down, wait_until

pytestmark = [pytest.mark.stack, pytest.mark.long]  # eight programs start, each with imports of its own


@pytest.fixture
def host(jars, tmp_path):
    """Settings of a host where nothing runs yet."""
    settings = ephemeral_settings(tmp_path / "state", jars.parent)
    settings.spool = SpoolSettings(root=tmp_path / "spool")
    settings.metrics_port, settings.serve.port = 0, free_ports(1)[0]
    yield settings
    down(settings)


def page(settings, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{settings.serve.port}{path}", timeout=WAIT_S) as answer:
            return answer.read().decode()
    except HTTPError as error:
        return f"{error.code}"


def processes_of(settings):
    """Names of the programs that belong to the state directory, whoever started them."""
    commands = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(STACK) == str(settings.local.state):
                commands.append(process.cmdline())
        except psutil.Error:
            continue
    return commands


def test_a_job_of_a_host_where_nothing_runs_has_its_page_by_one_command(host, environment_of, tmp_path):
    programs = Programs(tmp_path)

    def drumline(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "drumline.cli.app", *arguments], env=environment_of(host), capture_output=True,
            text=True, timeout=WAIT_S,
        )  # fmt: skip

    job = ["sh", "-c", LAUNCHER, str(programs.folder / "fake-plain"), "host"]
    done = drumline("run", "--local", "--policy", "light", "--job", "mine", "--run", "r", "--", *job)
    assert done.returncode == 0, done.stderr
    assert f"http://127.0.0.1:{host.serve.port}/job/mine shows the job" in done.stderr
    assert wait_until(lambda: f"rank {LATE}" in page(host, "/job/mine"), WAIT_S), page(host, "/job/mine")
    status = drumline("status")
    assert status.returncode == 0, status.stdout
    states = dict(line.split()[:2] for line in status.stdout.splitlines() if len(line.split()) > 1)
    assert [states[name] for name in PROGRAMS] == ["answers"] * len(PROGRAMS)

    children = read_json(State.of(host).programs.children)
    victim = psutil.Process(children["sink"]["pid"])
    victim.kill()
    assert wait_until(lambda: read_json(State.of(host).programs.children)["sink"]["restarts"] == 1, WAIT_S)
    again = drumline("up")
    assert again.returncode == 0
    assert again.stdout.splitlines()[0] == "already up"

    assert drumline("down").stdout == "stopped\n"
    assert processes_of(host) == []
    assert drumline("sql", "jobs", "--csv").stdout.count("mine") == 1, "what is stored stays"


def test_programs_whose_supervisors_were_killed_are_found_by_down(host, environment_of):
    command = [sys.executable, "-m", "drumline.cli.app", "up"]
    subprocess.run(command, env=environment_of(host), check=True, capture_output=True, timeout=WAIT_S)
    for process in psutil.process_iter():
        if "drumline.infra.localstack.supervisor" in (arguments := process.cmdline()) and any(
            argument.startswith(str(host.local.state)) for argument in arguments
        ):
            process.kill()
    assert {arguments[3] for arguments in processes_of(host)} >= set(PROGRAMS)
    assert down(host)
    assert processes_of(host) == []
