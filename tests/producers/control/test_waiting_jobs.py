"""Announcements of jobs that wait lie where every user may write: shares per user, and no link is followed."""

import os
import time

import pytest

from drumline.producers.collector import late
from drumline.producers.control import waiting_jobs as module
from drumline.producers.control.waiting_jobs import LEFT_S, MOST_OF_USER, make_folder, waiting_jobs

FOREIGN, USER = 4_301, 4_302
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can lay files of several users")


@pytest.fixture
def folder(tmp_path):
    make_folder(tmp_path)
    return tmp_path / late.WAITING


def lay(folder, name, job, user=None, age_s=0.0):
    path = folder / name
    path.write_text(job)
    os.utime(path, (time.time() - age_s,) * 2)
    if user is not None:
        os.chown(path, user, user)


@AS_ROOT
def test_a_user_with_thousands_of_announcements_takes_no_place_of_another(tmp_path, folder):
    lay(folder, "first", "first", USER)
    for number in range(5_000):
        lay(folder, f"w{number}", f"junk{number}", FOREIGN)
    lay(folder, "last", "last", USER)
    jobs = waiting_jobs(tmp_path)
    assert {"first", "last"} <= jobs
    assert len(jobs) == MOST_OF_USER + 2


def test_the_newest_of_a_user_count(tmp_path, folder):
    for number in range(MOST_OF_USER):
        lay(folder, f"old{number}", "old", age_s=60)
    lay(folder, "new", "new", age_s=1)
    assert waiting_jobs(tmp_path) == {"old", "new"}


def test_the_processes_of_one_job_hide_no_other_job_of_their_user(tmp_path):
    for number, job in enumerate(["small", *["large"] * 2 * MOST_OF_USER, "new"]):
        late.forget()
        late.announce(str(tmp_path), job)
        os.utime(late._announcement, (time.time() - 100 + number / 10,) * 2)
    late.forget()
    assert waiting_jobs(tmp_path) == {"small", "large", "new"}


@AS_ROOT
def test_a_flood_beyond_what_is_listed_is_removed_down_to_the_share(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(module, "MOST_LISTED", 1_000)
    lay(folder, "real", "real", USER)
    for number in range(3_000):
        lay(folder, f"w{number}", f"junk{number}", FOREIGN)
    for _ in range(5):
        jobs = waiting_jobs(tmp_path)
    assert "real" in jobs
    assert len(list(folder.iterdir())) <= 1_000


def test_a_very_old_folder_or_link_among_them_does_not_stop_the_others(tmp_path, folder):
    (folder / "folder").mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    os.mkfifo(folder / "fifo")
    for name in ("folder", "fifo"):
        os.utime(folder / name, (time.time() - 2 * LEFT_S,) * 2)
    lay(folder, "real", "real")
    assert waiting_jobs(tmp_path) == {"real"}


def test_an_announcement_follows_no_link_and_no_user_can_take_its_name_before(tmp_path, monkeypatch):
    private = tmp_path / "private"
    private.write_text("secret")
    os.utime(private, (1, 1))
    root = tmp_path / "spool"
    late.announce(str(root), "first")
    (path,) = (root / late.WAITING).iterdir()
    path.unlink()
    path.symlink_to(private)
    late.announce(str(root), "again")
    assert private.stat().st_mtime == 1, "not touched"
    path.unlink()
    late.announce(str(root), "again")
    assert waiting_jobs(root) == {"again"}
    (second,) = (root / late.WAITING).iterdir()
    assert second.name != path.name, "nobody knows it before"
    late.withdraw()
    assert waiting_jobs(root) == set()
