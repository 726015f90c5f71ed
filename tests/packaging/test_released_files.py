"""From the first release on its migrations, schemas and golden bytes never change: `make release` notes their sums."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FROZEN = "infra/released.sha256"
FILES = (
    "infra/clickhouse/migrations/0001_raw_tables.sql",
    "schemas/avro/released/gpu.step.v1.1.avsc",
    "tests/data/golden/gpu.step.v1.1.bin",
)


def run(*command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def freeze(folder):
    return run("make", "--no-print-directory", "--file", str(ROOT / "Makefile"), "freeze", folder=folder)


@pytest.fixture
def released(tmp_path):
    """A checkout with a file of each kind, from which a release was made."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    assert freeze(tmp_path) == (0, "")
    return tmp_path


@pytest.mark.skipif(not (ROOT / FROZEN).exists(), reason="nothing is released yet")
def test_what_was_released_is_as_it_was():
    assert run("sha256sum", "--check", "--quiet", "--strict", FROZEN, folder=ROOT) == (0, "")


def test_a_release_begins_with_the_sums():
    recipe = (ROOT / "Makefile").read_text()
    assert "\nrelease: versions freeze " in recipe, "versions writes the files that freeze sums up"
    assert (ROOT / FILES[0]).exists(), "freeze names a folder that is there"


@pytest.mark.parametrize("change", [lambda path: path.write_text("other"), Path.unlink], ids=["changed", "removed"])
@pytest.mark.parametrize("name", FILES)
def test_a_release_with_another_text_of_a_released_file_ends_and_keeps_the_sums(released, name, change):
    sums = (released / FROZEN).read_text()
    (released / name).with_name("zzz.sql").write_text("so that one is left")
    change(released / name)
    code, text = freeze(released)
    assert code != 0
    assert f"{name}: FAILED" in text
    assert (released / FROZEN).read_text() == sums


def test_the_next_release_adds_its_files(released):
    new = FILES[0].replace("0001_raw_tables", "0007_more")
    (released / new).write_text("more")
    before = (released / FROZEN).read_text().splitlines()
    assert freeze(released) == (0, "")
    after = (released / FROZEN).read_text().splitlines()
    assert set(before) < set(after)
    assert [line.split()[1] for line in after if line not in before] == [new]
