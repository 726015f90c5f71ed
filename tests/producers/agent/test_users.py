"""Jobs of several users and an agent without capabilities, in a root as infra/systemd/drumline.conf describes it."""

import os
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from support.labs.agent import Lab, process, write

from drumline.producers.spool.quota import SpoolLimits
from drumline.producers.spool.writer import SpoolWriter

AGENT, JOBS = 4_001, (5_001, 5_002)


@pytest.fixture
def root():
    """Return a spool's root that the agent's user owns, below folders that all users may enter."""
    if os.geteuid():
        pytest.skip("only root can act as several users")
    above = Path(tempfile.mkdtemp())
    above.chmod(0o755)
    path = above / "drumline"
    path.mkdir()
    os.chown(path, AGENT, AGENT)
    path.chmod(0o3777)
    yield path
    shutil.rmtree(above)


def as_user(user, action, group=100):
    """Run an action in a child without any privilege; it fails with the child."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(group)  # of all jobs' users the same
            os.setuid(user)
            action()
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_agent_without_capabilities_publishes_and_removes_the_folders_of_all_users(root):
    def record():
        spool = SpoolWriter(root, process(f"p{os.getuid()}"), SpoolLimits(segment_bytes=1_000))
        write(spool, range(5))
        spool.close()

    def peek():
        for folder in root.iterdir():
            with pytest.raises(PermissionError):
                os.listdir(folder)
            with pytest.raises(PermissionError):
                folder.rename(root / "stolen")

    def publish():
        lab = Lab(root).start()
        lab.tick()
        sequences, rows, lost = lab.account()
        assert (sorted(sequences), rows, lost) == (sorted([*range(5)] * len(JOBS)), 50 * len(JOBS), 0)

    umask = os.umask(0o077)  # as strict as a user's may be
    try:
        for user in JOBS:
            as_user(user, record)
    finally:
        os.umask(umask)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in root.iterdir()} == {0o2770}
    as_user(5_003, peek)
    as_user(AGENT, publish, AGENT)
    assert sorted(os.listdir(root)) == [".agent", ".rings"]
