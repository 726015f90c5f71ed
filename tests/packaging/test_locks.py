"""The locks of infra/requirements hold what pyproject.toml asks for: exact versions, each with its hashes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "infra" / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = dict(re.findall(r"^EXTRAS_(\w+) := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE))
NAMES = sorted(EXTRAS)
#: Compiles the wheels of a release; too large for all who test.
COMPILER = "ziglang"


def locked(name):
    """Lines of a lock, each a requirement: (requirement, hashes)."""
    text = (LOCKS / f"{name}.txt").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line and not line.startswith("#"):
            requirement, *hashes = re.split(r"\s+--hash=", line)
            yield Requirement(requirement), [digest.strip() for digest in hashes]


def wanted(extras):
    """Requirements of the project and these extras, those of its own extras included."""
    yield from map(Requirement, PROJECT["dependencies"])
    todo = list(extras)
    while todo:
        for line in PROJECT["optional-dependencies"][todo.pop()]:
            requirement = Requirement(line)
            if requirement.name == PROJECT["name"]:
                todo += requirement.extras
            else:
                yield requirement


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_has_exact_versions_with_hashes_and_names_no_index(name):
    text = (LOCKS / f"{name}.txt").read_text()
    assert not re.search(r"https?:|--(extra-)?index-url|--find-links|--trusted-host", text)
    for requirement, hashes in locked(name):
        assert re.fullmatch(r"==[^,*]+", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes), requirement


@pytest.mark.parametrize("python", ["3.11", "3.12"])
@pytest.mark.parametrize("name", NAMES)
def test_a_lock_has_what_pyproject_asks_for_else_make_lock_is_due(name, python):
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux", "extra": ""}
    versions = {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin, _ in locked(name)
        if pin.marker is None or pin.marker.evaluate(environment)
    }
    for need in wanted(EXTRAS[name].split()):
        if need.marker is None or need.marker.evaluate(environment):
            assert versions.get(canonicalize_name(need.name), "0") in need.specifier, f"run `make lock`: {need}"


def test_programs_run_on_the_versions_that_are_tested():
    tested = {(pin.name, str(pin.specifier), tuple(hashes)) for pin, hashes in locked("dev")}
    for name in NAMES:
        pins = {(pin.name, str(pin.specifier), tuple(hashes)) for pin, hashes in locked(name) if pin.name != COMPILER}
        assert pins <= tested


def test_everything_is_installed_with_hashes():
    docker = (ROOT / "infra/image/Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", (ROOT / "Makefile").read_text() + docker)
    assert len(installs) == 7
    for line in installs:
        assert "--require-hashes" in line or "--no-index" in line or "--no-deps --no-build-isolation" in line, line
    [extras] = re.findall(r"drumline\[([\w,]+)\]", docker)
    assert set(extras.split(",")) | {"build"} == set(EXTRAS["image"].split())
