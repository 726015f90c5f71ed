"""Leftovers of drumline on a machine are named with their size, and removed after a yes; nothing else is."""

import os

import pytest
from typer.testing import CliRunner

from drumline.cli.stack import uninstall
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.producers.agent.cursor import Cursor

PROCESS = "c44fc8c8-b0df-5e71-a9f6-84b4934ee149-b1ba3f26"


@pytest.fixture
def left(tmp_path, monkeypatch):
    """Folders of a local stack that is down, and a spool."""
    settings = ephemeral_settings(tmp_path / "state")
    settings.local.cache, settings.spool.root = tmp_path / "cache", tmp_path / "spool"
    for entry in (settings.local.state / "logs", settings.local.cache / "kafka-1", settings.spool.root / PROCESS):
        entry.mkdir(parents=True)
        (entry / "file").write_bytes(bytes(2_000_000))
    monkeypatch.setattr(uninstall, "settings", lambda: settings)
    return tmp_path


def test_nothing_is_removed_without_a_yes(left):
    answer = CliRunner().invoke(uninstall.app, ["--jars"])
    assert answer.exit_code == 2
    for name in ("state", "cache", "spool"):
        assert f"{left / name}  2 MB" in answer.output
        assert any((left / name).iterdir())


def test_all_is_removed_and_a_repetition_finds_nothing(left):
    answer = CliRunner().invoke(uninstall.app, ["--yes", "--jars"])
    assert (answer.exit_code, list(left.iterdir())) == (0, [])
    assert "pip uninstall drumline" in answer.output
    answer = CliRunner().invoke(uninstall.app, [])
    assert answer.exit_code == 0
    assert "nothing of this user is left" in answer.output


def test_files_that_drumline_did_not_make_stay_with_their_folder(left):
    """A setting that names a home, or a checkout."""
    (left / "state" / "setup.py").write_text("")
    (left / "spool").rename(left / "elsewhere")
    (left / "spool").symlink_to(left / "elsewhere")
    answer = CliRunner().invoke(uninstall.app, ["--yes"])
    assert answer.exit_code == 0
    assert [path.name for path in (left / "state").iterdir()] == ["setup.py"]
    assert (left / "elsewhere" / PROCESS / "file").exists()
    assert f"{left / 'state'} stays" in answer.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of another user")
def test_files_of_another_user_stay(left):
    os.chown(left / "spool" / PROCESS, 12_345, -1)
    answer = CliRunner().invoke(uninstall.app, ["--yes"])
    assert (left / "spool" / PROCESS / "file").exists()
    assert f"{left / 'spool'} stays" in answer.output


def test_a_spool_that_an_agent_serves_is_left_to_it(left):
    cursor = Cursor(left / "spool")
    try:
        answer = CliRunner().invoke(uninstall.app, ["--yes"])
    finally:
        cursor.close()
    assert answer.exit_code == 2
    assert "an agent still publishes" in answer.output
    assert (left / "spool" / PROCESS / "file").exists()


def test_jars_that_other_stacks_of_the_user_share_stay_unless_they_are_named(left):
    answer = CliRunner().invoke(uninstall.app, ["--yes"])
    assert answer.exit_code == 0
    assert [path.name for path in left.iterdir()] == ["cache"]
    assert (left / "cache" / "kafka-1" / "file").exists()
    assert f"{left / 'cache'}  2 MB  Kafka's jars stay for other stacks of yours; --jars removes them" in answer.output
