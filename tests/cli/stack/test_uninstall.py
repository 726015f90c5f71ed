"""Leftovers of drumline on a machine are named with their size, and removed after a yes."""

import pytest
from typer.testing import CliRunner

from drumline.cli.stack import uninstall
from drumline.infra.localstack.ephemeral import ephemeral_settings


@pytest.fixture
def left(tmp_path, monkeypatch):
    """Folders of a local stack that is down, and a spool."""
    settings = ephemeral_settings(tmp_path / "drumline-state")
    settings.local.cache, settings.spool.root = tmp_path / "drumline-cache", tmp_path / "drumline"
    for path in (settings.local.state, settings.local.cache, settings.spool.root):
        (path / "below").mkdir(parents=True)
        (path / "below" / "file").write_bytes(bytes(2_000_000))
    monkeypatch.setattr(uninstall, "settings", lambda: settings)
    return tmp_path


def test_nothing_is_removed_without_a_yes(left):
    answer = CliRunner().invoke(uninstall.app, [])
    assert answer.exit_code == 2
    for name in ("drumline-state", "drumline-cache", "drumline"):
        assert f"{left / name}  2 MB" in answer.output
        assert (left / name / "below" / "file").exists()


def test_all_is_removed_and_a_repetition_finds_nothing(left):
    answer = CliRunner().invoke(uninstall.app, ["--yes"])
    assert (answer.exit_code, list(left.iterdir())) == (0, [])
    assert "pip uninstall drumline" in answer.output
    answer = CliRunner().invoke(uninstall.app, [])
    assert answer.exit_code == 0
    assert "nothing is left" in answer.output


def test_a_folder_behind_a_link_is_not_followed(left):
    (left / "drumline").rename(left / "elsewhere")
    (left / "drumline").symlink_to(left / "elsewhere")
    assert CliRunner().invoke(uninstall.app, ["--yes"]).exit_code == 0
    assert (left / "elsewhere" / "below" / "file").exists()


def test_a_folder_that_may_hold_other_things_stays_and_is_named(left):
    settings = uninstall.settings()
    (left / "drumline").rename(left / "home")
    settings.spool.root = left / "home"
    answer = CliRunner().invoke(uninstall.app, ["--yes"])
    assert answer.exit_code == 0
    assert f"{left / 'home'} stays" in answer.output
    assert [path.name for path in left.iterdir()] == ["home"]
