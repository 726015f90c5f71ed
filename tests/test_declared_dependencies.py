"""What a GPU node's programs import is what `pip install 'drumline[gpu]'` brings, not what other extras happen to."""

import json
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOADED = """
import importlib, json, sys
before = set(sys.modules)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def installed_with(name: str, extras: frozenset[str]) -> set[str]:
    """Distributions that come with a distribution and its extras, itself among them."""
    found: set[str] = set()
    todo = [(canonicalize_name(name), extras)]
    while todo:
        one, wanted = todo.pop()
        found.add(one)
        for line in requires(one) or []:
            need = Requirement(line)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in wanted | {""}):
                other = canonicalize_name(need.name)
                if other not in found:
                    todo.append((other, frozenset(need.extras)))
    return found


@pytest.mark.parametrize("command", ["run", "agent", "doctor", "config"])
def test_a_gpu_nodes_programs_import_only_what_their_extra_brings(command):
    modules = ["drumline.infra.cli", f"drumline.infra.command_{command}"]
    if command != "config":
        modules += ["drumline.producers.nvml", "drumline.producers.checks", "drumline.producers.session"]
    done = subprocess.run([sys.executable, "-c", LOADED, *modules], capture_output=True, text=True, check=True)
    owners = packages_distributions()
    allowed = installed_with("drumline", frozenset({"gpu"}))
    strange = {
        module: owners[module]
        for module in json.loads(done.stdout)
        if module in owners and not {canonicalize_name(owner) for owner in owners[module]} & allowed
    }
    assert not strange
