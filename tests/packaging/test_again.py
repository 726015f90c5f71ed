"""CI runs a failed test with a real stack once more, and hides nothing of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Tests that end well, fail once, fail always with a stack, fail always without one.
TESTS = """
import pathlib, pytest

def test_good():
    pass

@pytest.mark.stack
def test_once():
    first = not pathlib.Path("seen").exists()
    pathlib.Path("seen").touch()
    assert not first

@pytest.mark.stack
def test_twice():
    assert False

def test_alone():
    pathlib.Path("runs").open("a").write("x")
    assert False
"""


@pytest.fixture
def again(tmp_path):
    """Run the named tests in a folder of their own, then what failed; (exit code, closing lines)."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    stack\n    long\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    shutil.copy(ROOT / ".ci" / "again.py", tmp_path)

    def run(*names):
        def python(*arguments):
            plain = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
            return subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=plain, capture_output=True, text=True)

        first = python("-m", "pytest", "--cache-clear", "-k", " or ".join(names))
        second = python("again.py", str(first.returncode))
        return second.returncode, [line for line in second.stdout.splitlines() if ": test_it.py::" in line]

    return run


def test_a_test_that_fails_once_ends_well_and_is_named(again):
    assert again("good", "once") == (0, ["FAILED ONCE, passed when run again: test_it.py::test_once"])


def test_a_test_that_fails_twice_or_needs_no_stack_fails_the_run(again, tmp_path):
    code, lines = again("good", "once", "twice", "alone")
    assert code == 1
    assert lines == [
        "FAILED: test_it.py::test_alone",
        "FAILED ONCE, passed when run again: test_it.py::test_once",
        "FAILED: test_it.py::test_twice",
    ]
    assert (tmp_path / "runs").read_text() == "x"


def test_a_run_without_failed_tests_keeps_its_exit_code(again):
    assert again("no_such_test") == (5, [])
