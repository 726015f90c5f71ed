"""Of files where every user may write, those of root, the agent's user and the reader alone count."""

import os
import threading
import time
from pathlib import Path

import pytest

from drumline.producers.ipc.control import FILE, read_requests
from drumline.producers.ipc.plain_file import AGENT_USER, make_public_folder, real_folder, untrusted
from drumline.producers.ipc.policy import read_policy_text

FOREIGN, AGENT = 4_301, 4_302
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay files of another user")
REQUEST = (
    '[{"key": "k", "kind": "policy", "policy": "off", "job": "*", "run": "", "host": "*", "ranks": [], '
    '"last_step": -1, "start_ns": 0, "until_ns": 9000000000000000000, "requested_ns": 1}]'
)


def laid(path, text, user=None, mode=0o644):
    path.write_text(text)
    path.chmod(mode)
    if user is not None:
        os.chown(path, user, user)


@AS_ROOT
def test_a_policy_and_requests_of_a_foreign_user_do_not_count_and_the_reason_is_stated(tmp_path, monkeypatch):
    laid(tmp_path / "policy", "off", FOREIGN)
    laid(tmp_path / FILE, REQUEST, FOREIGN)
    assert read_policy_text(tmp_path / "policy") == ""
    assert read_requests(tmp_path) == []
    for name in ("policy", FILE):
        assert f"belongs to user {FOREIGN}" in untrusted(tmp_path / name)
    monkeypatch.setenv(AGENT_USER, str(FOREIGN))
    assert read_policy_text(tmp_path / "policy") == "off", "it is the agent's"
    assert len(read_requests(tmp_path)) == 1
    assert untrusted(tmp_path / "policy") == ""


@AS_ROOT
def test_a_file_that_only_a_foreign_user_may_read_stops_no_reader(tmp_path):
    """Before it is opened: a job that is not root gets no answer from it."""
    root = tmp_path / "spool"
    root.mkdir()
    laid(root / "policy", "off", FOREIGN, 0o600)
    for folder in (root, *(part for part in root.parents if part.stat().st_uid == os.geteuid() and part != Path("/"))):
        folder.chmod(folder.stat().st_mode | 0o555)
    child = os.fork()
    if child == 0:  # never back into pytest
        try:
            os.setuid(AGENT)
            os._exit(0 if read_policy_text(root / "policy") == "" else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


@AS_ROOT
def test_with_umask_002_the_group_of_one_user_may_write_and_another_group_may_not(tmp_path):
    laid(tmp_path / "policy", "off", mode=0o664)  # of root and its group
    assert read_policy_text(tmp_path / "policy") == "off"
    os.chown(tmp_path / "policy", -1, FOREIGN)
    assert read_policy_text(tmp_path / "policy") == ""


@pytest.mark.parametrize("mode", [0o646, 0o666])
def test_a_file_that_more_users_may_write_does_not_count(tmp_path, mode):
    laid(tmp_path / "policy", "off", mode=mode)
    assert read_policy_text(tmp_path / "policy") == ""
    assert "others may write it: chmod go-w" in untrusted(tmp_path / "policy")
    (tmp_path / "policy").chmod(0o644)
    assert read_policy_text(tmp_path / "policy") == "off"


def test_links_folders_and_devices_in_place_of_a_policy_are_as_if_nothing_was_there(tmp_path):
    path = tmp_path / "policy"
    laid(tmp_path / "real", "off")
    for lay, reason in (
        (lambda: path.symlink_to(tmp_path / "real"), "is a link"),
        (path.mkdir, "no plain file"),
        (lambda: os.mkfifo(path), "no plain file"),
    ):
        lay()
        assert read_policy_text(path) == ""
        assert reason in untrusted(path)
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_a_user_that_does_not_exist_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setenv(AGENT_USER, "no-such-user")
    laid(tmp_path / "policy", "off")
    assert read_policy_text(tmp_path / "policy") == "off", "the reader's user still is"


def test_a_link_laid_while_a_folder_is_created_opens_nothing_to_others(tmp_path):
    """The owner of the folder above may exchange what lies there, at any moment."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    place, halt = tmp_path / "spool", threading.Event()

    def exchange():
        while not halt.is_set():
            try:
                os.rmdir(place)
                place.symlink_to(private)
                time.sleep(0)
                place.unlink()
            except OSError:
                continue

    thread = threading.Thread(target=exchange)
    thread.start()
    until = time.monotonic() + 1.5
    try:
        while time.monotonic() < until and private.stat().st_mode & 0o777 == 0o700:
            try:
                make_public_folder(place)
            except OSError:
                continue
    finally:
        halt.set()
        thread.join()
    assert oct(private.stat().st_mode & 0o777) == "0o700"


@AS_ROOT
def test_a_foreign_link_in_place_of_the_spools_root_is_refused_and_roots_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "spool"
    link.symlink_to(tmp_path / "real")
    assert real_folder(link) == (tmp_path / "real").resolve()
    os.chown(link, FOREIGN, FOREIGN, follow_symlinks=False)
    with pytest.raises(OSError, match="is a link of user"):
        real_folder(link)
    assert real_folder(Path(tmp_path / "real")) == (tmp_path / "real").resolve()
