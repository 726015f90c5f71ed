"""The examples of docs/guide/connect.md and the notebook beside it run, on the demo's job."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.demo_engine import demo_engine

from drumline.infra.localstack.ephemeral import environment

GUIDE = Path(__file__).parents[3] / "docs" / "guide"
EXAMPLES = re.findall(r"```python\n(.*?)```", (GUIDE / "connect.md").read_text(), re.DOTALL)
NOTEBOOK = json.loads((GUIDE / "notebook.ipynb").read_text())
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_has_no_outputs():
    assert (NOTEBOOK["nbformat"], len(CODE) > 3) == (4, True)
    for cell in NOTEBOOK["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])


@pytest.fixture(scope="module")
def run_code(tmp_path_factory):
    """Run code in a process whose settings name the demo's engine; its output."""
    with demo_engine(tmp_path_factory.mktemp("demo")) as settings:

        def run(code):
            child = [sys.executable, "-c", code]
            done = subprocess.run(child, env=environment(settings), capture_output=True, text=True, check=False)
            assert not done.returncode, done.stderr[-2000:]
            return done.stdout

        yield run


@pytest.mark.long
@pytest.mark.stack
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number, run_code):
    for package in re.findall(r"^import (.*)$", EXAMPLES[number], re.MULTILINE):
        if any(importlib.util.find_spec(name) is None for name in package.split(", ")):
            pytest.skip(f"{package}: not installed")
    assert run_code(EXAMPLES[number])


@pytest.mark.long
@pytest.mark.stack
def test_the_notebook_finds_the_most_expensive_rank_and_its_extra_work(run_code):
    code = "\n".join(
        [*CODE[:-1], "print(late, families.loc[families['family'] == 'gemm'].set_index('rank').gpu_s.idxmax())"]
    )
    assert run_code(code).split() == ["2", "2"]
    assert CODE[-1] == "db.close()"
