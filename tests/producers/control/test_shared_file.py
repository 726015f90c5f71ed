"""The agent writes its requests where every user may write: no link is followed, nothing of another user is touched."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from drumline.producers.control.requests_in_force import as_file
from drumline.producers.control.shared_file import ControlFile
from drumline.producers.ipc.control import FILE, read_requests
from drumline.producers.ipc.plain_file import AGENT_USER
from drumline.producers.spool.folder_layout import AGENT_FOLDER
from drumline.schemas.control import POLICY, Control

FOREIGN, AGENT = 4_301, 4_302


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "spool"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def private(tmp_path):
    path = tmp_path / "private"
    path.write_text("secret")
    path.chmod(0o600)
    os.utime(path, (1, 1))
    return path


def unchanged(private):
    about = private.stat()
    return (private.read_text(), about.st_mode & 0o777, about.st_mtime) == ("secret", 0o600, 1)


def test_it_is_written_renewed_and_removed(root):
    file, path = ControlFile(root), root / FILE
    file.write("[1]")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("[1]", 0o644)
    inode = path.stat().st_ino
    os.utime(path, (1, 1))
    file.write("[1]")
    assert time.time() - path.stat().st_mtime < 60, "renewed"
    assert path.stat().st_ino == inode, "what is renewed is not written again"
    file.write("[2]")
    assert path.read_text() == "[2]"
    file.remove()
    file.remove()
    assert not path.exists()
    assert os.listdir(root / AGENT_FOLDER) == []


@pytest.mark.parametrize("name", [FILE, f"{FILE}.{os.getpid()}", f"{AGENT_FOLDER}/{FILE}"], ids=["it", "new", "moved"])
def test_a_link_in_place_of_a_file_that_it_writes_is_not_followed(root, private, name):
    (root / AGENT_FOLDER).mkdir(mode=0o700)
    (root / name).symlink_to(private)
    file = ControlFile(root)
    for text in ("[1]", "[1]", "[2]"):
        file.write(text)
        assert (root / FILE).read_text() == text
        assert unchanged(private)


def test_a_link_laid_between_two_renewals_is_replaced(root, private):
    file = ControlFile(root)
    file.write("[1]")
    (root / FILE).unlink()
    (root / FILE).symlink_to(private)
    file.write("[1]")
    assert unchanged(private)
    assert (root / FILE).read_text() == "[1]"
    (root / FILE).unlink()
    (root / FILE).symlink_to(private)
    file.remove()
    assert unchanged(private)


def test_a_file_of_the_same_content_in_its_place_is_not_renewed_but_replaced(root):
    file, path = ControlFile(root), root / FILE
    file.write("[1]")
    path.rename(root / "moved")
    path.write_text("[9]")
    file.write("[1]")
    assert path.read_text() == "[1]"


def test_a_folder_in_its_place_is_renamed(root):
    (root / FILE / "below").mkdir(parents=True)
    file = ControlFile(root)
    file.write("[1]")
    assert (root / FILE).read_text() == "[1]"
    assert [path for path in root.iterdir() if (path / "below").exists()], "nothing of a user's is deleted"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be a user without rights")
def test_what_a_user_without_rights_may_not_replace_is_an_error_and_untouched(root):
    (root / FILE).write_text("[9]")
    for folder in (root, root.parent, root.parent.parent):
        folder.chmod(0o1777)
    child = os.fork()
    if child == 0:
        os.setuid(FOREIGN)
        try:
            ControlFile(root).write("[1]")
            os._exit(1)
        except OSError:
            os._exit(0)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert (root / FILE).read_text() == "[9]"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_a_users_file_in_its_place_is_neither_obeyed_nor_in_its_way(monkeypatch):
    """In a sticky root of root, an agent without rights may not replace what a user has laid there before."""
    monkeypatch.setenv(AGENT_USER, str(AGENT))
    with TemporaryDirectory() as above:
        os.chmod(above, 0o755)
        root = Path(above) / "spool"
        root.mkdir()
        root.chmod(0o1777)
        check_beside_a_users_file(root)


def check_beside_a_users_file(root):
    (root / FILE).write_text(as_file([request("his")])[0])
    os.chown(root / FILE, FOREIGN, FOREIGN)
    for number in range(2_000):
        (root / f"{FILE}.{number:08x}").write_text("[]")
        os.chown(root / f"{FILE}.{number:08x}", FOREIGN, FOREIGN)
    file = ControlFile(root)
    for key in ("first", "first", "second"):
        as_user(AGENT, lambda key=key: file.write(as_file([request(key)])[0]))
        assert [query.key for query in read_requests(root)] == [key]
    as_user(AGENT, file.remove)
    assert read_requests(root) == []
    assert sum(path.stat().st_uid == AGENT for path in root.iterdir()) == 1, "its folder"


def request(key):
    """A policy that is in force."""
    now_ns = time.time_ns()
    return Control(
        key=key, kind=POLICY, policy="off", job="*", run="", host="*", ranks=(), start_ns=now_ns - 10**9,
        until_ns=now_ns + 10**12, requested_by="x", requested_ns=now_ns,
    )  # fmt: skip


def as_user(user, action):
    os.seteuid(user)
    try:
        action()
    finally:
        os.seteuid(0)


def test_a_link_in_place_of_the_root_is_not_followed(root, tmp_path):
    root.rename(tmp_path / "moved")
    root.symlink_to(tmp_path / "moved")
    with pytest.raises(OSError):
        ControlFile(root).write("[1]")
    assert os.listdir(tmp_path / "moved") == []
