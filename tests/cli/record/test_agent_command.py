"""`drumline agent` as a program: exit codes."""

import fcntl
import signal
import time

import pytest
from support.labs.agent_command import agent, errors_of
from support.wait_limit import WAIT_S


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_stops_cleanly_though_kafka_never_answered(tmp_path, number, code):
    program = agent(tmp_path / "new" / "spool")
    until = time.monotonic() + WAIT_S
    while not list(tmp_path.glob("new/spool/*/identity.json")):
        assert time.monotonic() < until
        time.sleep(0.05)
    assert (tmp_path / "new" / "spool").stat().st_mode & 0o7777 == 0o1777, "jobs of all users write there"
    program.send_signal(number)
    errors = errors_of(program)
    assert program.returncode == code, errors
    assert "Traceback" not in errors


def test_a_second_agent_ends_with_6(tmp_path):
    (tmp_path / ".agent").mkdir(mode=0o700)
    with (tmp_path / ".agent" / "lock").open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        program = agent(tmp_path)
        errors = errors_of(program)
    assert program.returncode == 6
    assert "another agent" in errors


@pytest.mark.parametrize("laid", ["a link", "open to all"])
def test_a_folder_that_another_user_laid_for_the_agent_is_not_used(tmp_path, laid):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "spool").mkdir()
    if laid == "a link":
        (tmp_path / "spool" / ".agent").symlink_to(tmp_path / "theirs")
    else:
        (tmp_path / "spool" / ".agent").mkdir()
        (tmp_path / "spool" / ".agent").chmod(0o777)
        (tmp_path / "spool" / ".agent" / "cursor.tmp").symlink_to(tmp_path / "theirs" / "file")
    program = agent(tmp_path / "spool")
    errors = errors_of(program)
    assert program.returncode == 2
    assert ".agent is a link, another user's, or others may write there: remove it" in errors
    assert not list((tmp_path / "theirs").iterdir())


@pytest.mark.parametrize(
    ("root", "setting", "message"),
    [
        ("file/spool", {}, "DRUMLINE_SPOOL__ROOT"),
        ("spool", {"ARCHIVE__URL": "s3://b", "ARCHIVE__SECRET_FILE": "/nowhere"}, "DRUMLINE_ARCHIVE__SECRET_FILE"),
    ],
)
def test_what_cannot_work_ends_with_2_and_names_the_setting(tmp_path, root, setting, message):
    (tmp_path / "file").write_text("")
    program = agent(tmp_path / root, **setting)
    errors = errors_of(program)
    assert program.returncode == 2, errors
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("spool", "message"), [("spoool", "no such folder"), ("spool/p0-1", "is the folder of one process")]
)
def test_a_spool_to_be_emptied_that_is_none_ends_with_2(tmp_path, spool, message):
    (tmp_path / "spool" / "p0-1").mkdir(parents=True)
    (tmp_path / "spool" / "p0-1" / "identity.json").write_text("{}")
    program = agent(tmp_path / spool, "--until-empty")
    errors = errors_of(program)
    assert (program.returncode, message in errors) == (2, True), errors
    assert not (tmp_path / "spoool").exists()
