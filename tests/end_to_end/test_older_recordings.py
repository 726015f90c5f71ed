"""All tests with a stack pass whatever the age of the recordings that they store.

They run in a copy of this checkout whose recordings are 400 days older, longer ago than any table keeps rows: a test
that stores one as it is, under retention by the time of its rows, finds none of them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from support.recordings import DAY_NS

pytestmark = [pytest.mark.long, pytest.mark.stack, pytest.mark.timeout(3_600)]
CHECKOUT = Path(__file__).parents[2]
AGO_NS = 400 * DAY_NS
TIMES = ("start", "timestamp", "ts")
#: They compare answers with pages whose times are those of the recordings, of which nothing expires there.
OF_PAGES = "not the_answer_is_the_pages"


def copied(folder):
    """The files of the checkout as they are now, and what was built in it."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    built = (str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "producers").rglob("*.so"))
    for name in {*filter(None, files), *built}:
        if (CHECKOUT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, folder / name, follow_symlinks=False)
    return folder


def make_older(recording):
    """Take AGO_NS from all times of a recorded job."""
    for path in recording.glob("*.parquet"):
        table = pq.read_table(path)
        for name in set(TIMES) & set(table.column_names):
            kind = table.schema.field(name).type
            older = pc.cast(pc.subtract(pc.cast(table[name], pa.int64()), AGO_NS), kind)
            table = table.set_column(table.column_names.index(name), name, older)
        pq.write_table(table, path)
    manifest = json.loads((recording / "manifest.json").read_text())
    for entry in (*manifest["phases"], *manifest["steps_rank0"]):
        entry["start_ns"], entry["end_ns"] = entry["start_ns"] - AGO_NS, entry["end_ns"] - AGO_NS
    (recording / "manifest.json").write_text(json.dumps(manifest))


def test_the_tests_with_a_stack_pass_with_recordings_that_are_400_days_older(tmp_path):
    folder = copied(tmp_path / "drumline")
    recordings = [
        path.parent for root in ("lab/demo", "tests/data/traces") for path in (folder / root).glob("*/manifest.json")
    ]
    assert len(recordings) > 5
    for recording in recordings:
        make_older(recording)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CI": "true"}
    where = subprocess.run(
        [sys.executable, "-c", "import drumline; print(drumline.__file__)"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert where.stdout.strip() == str(folder / "__init__.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", "-m",
         "stack and not long and not kube and not cluster", "-k", OF_PAGES],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    failed = "\n".join(re.findall("^(?:FAILED|ERROR) .*", run.stdout, re.MULTILINE))
    assert run.returncode == 0, failed or run.stdout[-3_000:] + run.stderr[-3_000:]
