"""The extra `gpu` brings all that the programs of a GPU host import."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drumline.infra.cli.app import MODULES

WITHOUT = """
import importlib, json, sys
hidden = set(json.loads(sys.argv[1]))

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def installed_with(name: str, extras: frozenset[str]) -> set[str]:
    """Distributions that come with a distribution and its extras, itself among them."""
    names: set[str] = set()
    todo = [(canonicalize_name(name), extras)]
    while todo:
        current, wanted = todo.pop()
        names.add(current)
        for line in requires(current) or []:
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in wanted | {""}):
                other = canonicalize_name(need.name)
                if other not in names:
                    todo.append((other, frozenset(need.extras)))
    return names


@pytest.mark.parametrize("command", ["run", "agent", "doctor", "config"])
def test_a_gpu_nodes_programs_start_with_what_their_extra_brings_and_nothing_else(command):
    allowed = installed_with("drumline", frozenset({"gpu"}))
    hidden = [
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & allowed
    ]
    assert "faust" in hidden
    modules = ["drumline.infra.cli.app", f"drumline.infra.cli.{MODULES[command]}"]
    if command != "config":
        modules += [
            "drumline.producers.nvml.samples",
            "drumline.producers.doctor.checks",
            "drumline.producers.decoder.session",
        ]
    child = [sys.executable, "-c", WITHOUT, json.dumps(hidden), *modules]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-800:]
