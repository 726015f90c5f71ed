"""An older state of drumline, out of the repository's history, whose programs run beside the present ones."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from drumline.infra.clickhouse.migrate import migrations

ROOT = Path(__file__).parents[2]
#: Prints the folder of the package that runs, the version of a worker's state, and names of tables and settings.
FACTS = """
import json
from pathlib import Path
import drumline
from drumline.infra.clickhouse.migrate import migrations
from drumline.infra.config.settings import Settings
from drumline.streams.core import records
print(json.dumps({"place": str(Path(drumline.__file__).parent), "state": records._VERSION,
                  "migration": migrations()[-1].version,
                  "retention": list(type(Settings().clickhouse.retention).model_fields)}))
"""


def git(*arguments: str) -> str:
    """Run git in the repository; return what it prints. Raises CalledProcessError, FileNotFoundError."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def before_migration(number: int) -> str:
    """Return the commit before the one that added a migration. Skips the test where the history lacks it."""
    name = next(f"{m.version:04d}_{m.name}.sql" for m in migrations() if m.version == number)
    try:
        added = git("log", "--format=%H", "--diff-filter=A", "--", f"infra/clickhouse/migrations/{name}").split()
        return git("rev-parse", f"{added[-1]}^").strip()
    except (OSError, subprocess.CalledProcessError, IndexError):
        pytest.skip("the history is not here (no git, a shallow clone, or an archive): git fetch --unshallow")


def unpack(commit: str, folder: Path) -> dict[str, str]:
    """Lay the package of a commit into `folder`; return the variables with which a Python finds that one."""
    parts = [name for name in git("ls-tree", "--name-only", commit).split() if re.match(r"\w+(\.py)?$", name)]
    archive = folder / "archive.tar"
    git("archive", "--format=tar", "-o", str(archive), commit, *(set(parts) - {"docs", "tests", "Makefile", "LICENSE"}))
    with tarfile.open(archive) as members:
        members.extractall(folder / "drumline", filter="data")
    archive.unlink()
    return {"PYTHONPATH": str(folder)}


def facts(variables: dict[str, str]) -> dict[str, Any]:
    """Return what FACTS prints with these variables."""
    command = [sys.executable, "-c", FACTS]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result
