"""The folder of kept rows: the agent's alone, shared by hosts, used by one agent of each."""

import os

import pytest

from drumline.producers.rollup.folder import ROWS, KeptFolder, write_private


def test_hosts_share_a_folder_and_one_agent_uses_its_part(tmp_path):
    first, second = KeptFolder(tmp_path / "kept", "n1"), KeptFolder(tmp_path / "kept", "n2/..")
    assert (first.path / ROWS).is_dir()
    assert not (first.path / ROWS).samefile(second.path / ROWS)
    with pytest.raises(OSError, match="another agent"):
        KeptFolder(tmp_path / "kept", "n1")
    first.close()
    KeptFolder(tmp_path / "kept", "n1").close()
    second.close()
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_a_folder_that_others_may_fill_is_refused(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="is a link"):
        KeptFolder(tmp_path / "link", "n1")
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(OSError, match="others may write"):
        KeptFolder(tmp_path / "mine", "n1")
    (tmp_path / "mine").chmod(0o700)
    (tmp_path / "mine" / "n1").symlink_to(tmp_path)
    with pytest.raises(OSError, match="is a link"):
        KeptFolder(tmp_path / "mine", "n1")


def test_files_are_the_agents_and_follow_the_folder_not_its_name(tmp_path):
    folder = KeptFolder(tmp_path / "kept", "n1")
    os.rename(tmp_path / "kept", tmp_path / "moved")
    (tmp_path / "kept").symlink_to(tmp_path)
    write_private(folder.path / ROWS / "a", b"x")
    [path] = (tmp_path / "moved").glob("*/rows/a")
    assert path.stat().st_mode & 0o777 == 0o600
    folder.close()
