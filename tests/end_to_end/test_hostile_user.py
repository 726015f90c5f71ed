"""A user of the host beside a job attacks every file of the spool's root: a real agent, files and Kafka.

Agent and job are root's, the user has no rights. The root belongs to root, or to that user, who came first: then the
sticky folder does not keep him from renaming and deleting what others have there.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.fakes.cupti import RawBuffer
from support.labs.agent import process, write
from support.wait_limit import WAIT_S

from drumline.infra.kafka.tail import read, without_empty
from drumline.infra.localstack.stack import wait_until
from drumline.infra.runtime.processes import ManagedProcess
from drumline.producers.ipc.control import FILE
from drumline.producers.spool.location import make_rings
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.topics import RAW_TOPICS

TESTS = Path(__file__).parents[1]
ATTACKER = 4_301
SECRET = "a-secret-of-root"
#: Time for the agent to meet what was laid: it renews and refreshes once a second; s.
MET_S = 1.3
JUNK = 1_500
pytestmark = [
    pytest.mark.stack,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user of the host"),
]


class Host:
    """An agent and a job in one spool, and files of root that nobody else may read."""

    def __init__(self, folder, environment, owner):
        self.folder, self.root, self.private = folder, folder / "spool", folder / "private"
        self.root.mkdir()
        os.chown(self.root, owner, owner)
        self.root.chmod(0o1777)
        self.private.mkdir(mode=0o700)
        spool = SpoolWriter(self.private, process(job=SECRET))
        write(spool, range(3), job=SECRET)
        spool.close()
        spool.folder.rename(self.private / "folder")
        for name in ("policy", "keep"):
            (self.private / name).write_text(f"off\n{SECRET}")
        self.kept = self.content()
        (folder / "ddp_steps").write_bytes(RawBuffer("ddp_steps").data.tobytes())
        self.environment = environment | {
            "DRUMLINE_SPOOL__ROOT": str(self.root), "DRUMLINE_RINGS__FOLDER": str(self.root / ".rings"),
            "DRUMLINE_AGENT__GPU_S": "0", "DRUMLINE_AGENT__STACKS": "false", "DRUMLINE_COLLECT__POLICY": "auto",
            "DRUMLINE_JOB": "deep", "DRUMLINE_RUN": "r1", "RANK": "0", "WORLD_SIZE": "1", "PYTHONPATH": str(TESTS),
            "RAW_CUPTI_PLAIN": str(folder), "DRUMLINE_COLLECT__BUFFER_MB": "4",
        }  # fmt: skip
        self.agent = ManagedProcess("agent", ["agent"], folder / "agent.log", self.environment, restarts=0)
        self.agent.start()
        make_rings(self.environment)
        with (folder / "job.log").open("wb") as log:
            command = [sys.executable, str(TESTS / "support/deep_job.py"), "0.2"]
            self.job = subprocess.Popen(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT)

    def drumline(self, *arguments):
        command = [sys.executable, "-m", "drumline.cli.app", *arguments]
        subprocess.run(command, env=self.environment, check=True, capture_output=True)

    def content(self):
        """Bytes, rights and times of all that is private."""
        paths = [self.private, *sorted(self.private.rglob("*"))]
        return [(path, path.stat().st_mode, path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
                for path in paths]  # fmt: skip

    def switched(self):
        lines = (self.folder / "job.log").read_text().splitlines()
        return [line.split()[0] for line in lines if line.startswith(("on ", "off "))]

    def targets(self):
        """Every file and folder of the root as it is now, and names that the agent or a job may use."""
        names = [FILE, "policy", ".waiting", ".rings", ".agent", ".sampled-0", f"{FILE}.{self.agent.pid}"]
        paths = [path for path in self.root.rglob("*") if SECRET not in str(path) and not path.is_symlink()]
        return list(dict.fromkeys([*(self.root / name for name in names), *sorted(paths)]))

    def publishes(self):
        """Return whether rows of another process reach Kafka: then the agent deletes them."""
        spool = SpoolWriter(self.root, process("canary"))
        write(spool, range(3))
        spool.close()
        return wait_until(lambda: not spool.folder.exists(), WAIT_S)

    def stop(self):
        self.job.kill()
        self.job.wait()
        self.agent.stop()


def replaced(path, host):
    if path.is_dir():
        with contextlib.suppress(OSError):
            path.rename(f"{path}.gone")
        path.mkdir(mode=0o777)
    else:
        path.unlink(missing_ok=True)
        path.write_text("off\n")


def linked(path, host):
    aim = "folder" if path.is_dir() else "policy" if path.name == "policy" else "keep"
    if os.path.lexists(path):
        path.rename(f"{path}.moved")
    path.symlink_to(host.private / aim)


def truncated(path, host):
    if not path.exists():
        path.write_text("")
    os.truncate(path, 0)
    os.truncate(path, 1 << 30)


def flooded(path, host):
    folder = path if path.is_dir() else path.parent
    for number in range(JUNK):
        name = folder / f"{path.name}-{number}"
        if number % 3:
            name.write_text("off\n")
        else:
            name.mkdir()
            (name / "identity.json").write_text("{}")


def as_attacker(action, path, host):
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(ATTACKER)
            os.setuid(ATTACKER)
            os.umask(0)
            with contextlib.suppress(OSError):
                action(path, host)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@pytest.fixture(params=[0, ATTACKER], ids=["roots", "the_attackers"])
def host(request, clean_stack, environment_of):
    above = Path(tempfile.mkdtemp(dir="/dev/shm"))
    above.chmod(0o755)
    environment = environment_of(clean_stack)
    subprocess.run([sys.executable, "-m", "drumline.cli.app", "topics", "apply"], env=environment, check=True,
                   capture_output=True)  # fmt: skip
    started = Host(above, environment, request.param)
    started.owner = request.param
    yield started
    started.stop()
    shutil.rmtree(above)


def test_a_hostile_user_stops_neither_job_nor_agent_and_nothing_of_root_is_read_or_written(host, clean_stack):
    def logs():
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(host.folder.glob("*.log")))

    host.drumline("policy", "set", "always", "--job", "deep", "--for", "1h")
    assert wait_until(lambda: host.switched()[-1:] == ["on"], WAIT_S), logs()
    for attack in (replaced, linked, truncated, flooded):
        for path in host.targets():
            as_attacker(attack, path, host)
            time.sleep(MET_S if path.parent == host.root else 0.05)
            assert host.content() == host.kept, f"{attack.__name__} {path}: something of root's was touched"
        time.sleep(MET_S)
        assert host.content() == host.kept, attack.__name__
        assert host.job.poll() is None, logs()
        assert host.publishes(), f"{attack.__name__}: the agent publishes nothing; {logs()}"
        if host.owner == 0:
            assert host.switched() == ["on"], f"{attack.__name__}: a file of his decides; {logs()}"
        clean(host)
    assert SECRET not in (host.folder / "agent.log").read_text()
    host.stop()
    for topic in without_empty(clean_stack, [str(topic) for topic in RAW_TOPICS]):
        for message in read(clean_stack, topic, "beginning", follow=False):
            assert SECRET.encode() not in (message.value() or b""), f"{topic} has what lies behind a link"


def clean(host):
    """Remove the attacker's files."""
    for path in [*host.root.iterdir(), *(host.root / ".waiting").glob("*"), *(host.root / ".rings").glob("*")]:
        if os.path.lexists(path) and path.lstat().st_uid == ATTACKER:
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
