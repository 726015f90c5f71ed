"""A wheel and an sdist carry every folder: no subpackage and no data file is left out of a wheel or an sdist."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("cli", "lab", "views", "producers", "streams", "sinks", "infra", "schemas")
#: Not installed: what containers and environments are built from.
LEFT_OUT = ("infra/compose/", "infra/helm/", "infra/image/", "infra/release/", "infra/requirements/", "infra/site/")


def product_files(pattern: str) -> set[str]:
    """Files of the repository that belong into a wheel, by their path from its root."""
    listed = subprocess.run(["git", "ls-files", *PRODUCT], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if Path(name).match(pattern) and not name.startswith(LEFT_OUT)}


def test_the_package_list_equals_the_folders_that_have_python():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {str(Path(name).parent).replace("/", ".") for name in product_files("*.py")}
    assert listed == sorted({"drumline"} | {f"drumline.{folder}" for folder in folders})


def test_every_folder_with_python_is_a_package_but_the_startup_folder():
    folders = {Path(name).parent for name in product_files("*.py")}
    without = {str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()}
    assert without == {"producers/collector/startup"}  # a PYTHONPATH entry, not a package


def test_no_folder_of_the_product_has_more_than_twenty_modules():
    sizes: dict[str, int] = {}
    for name in product_files("*.py"):
        sizes[str(Path(name).parent)] = sizes.get(str(Path(name).parent), 0) + 1
    assert {folder: size for folder, size in sizes.items() if size > 20} == {}


def test_no_prefix_of_module_names_stands_for_a_folder():
    for folder in {Path(name).parent for name in product_files("*.py")}:
        stems = [path.stem for path in (ROOT / folder).glob("*.py")]
        prefixes = [stem.partition("_")[0] for stem in stems if "_" in stem and not stem.startswith("_")]
        assert [p for p in set(prefixes) if prefixes.count(p) + (p in stems) > 2] == [], folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """A wheel built from an unpacked sdist, in a copy of the tree: names of files in both, without the top folder."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        if not name.startswith(("tests/", "docs/", ".typing/")) and (ROOT / name).is_file():  # no link to a folder
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"

    def make(kind: str, where: Path) -> Path:
        command = [sys.executable, "-c", build, f"build_{kind}", str(folder)]
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=True)
        return folder / done.stdout.splitlines()[-1]

    with tarfile.open(make("sdist", source)) as sdist:
        sdist.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    with zipfile.ZipFile(make("wheel", unpacked)) as wheel:
        in_wheel = {name.removeprefix("drumline/") for name in wheel.namelist()}
    return {"sdist": {str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()}, "wheel": in_wheel}


def test_a_wheel_made_from_the_sdist_has_every_file_of_the_product(built):
    files = product_files("*") | {"__init__.py", "py.typed"}
    libraries = {  # for no version of Python, and one by the name that NCCL looks for
        "infra/localstack/clickhouse/_failed_writes.so",
        "producers/collector/_callbacks.so",
        "producers/nccl_profiler/libnccl-profiler-drumline.so",
    }
    assert files <= built["sdist"]
    assert {name for name in files if not name.endswith((".c", ".h"))} | libraries <= built["wheel"]
