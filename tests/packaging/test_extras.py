"""The extras `gpu` and `sql` bring all that the programs of a GPU host, and of people who ask, import."""

import json
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions, requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from drumline.cli.app import MODULES
from drumline.infra.runtime.extras import extra_of

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


#: Module -> distributions; it reads the list of files of each.
OWNERS = cache(packages_distributions)


def hidden_without(extra: str) -> list[str]:
    """Modules that are here and do not come with an extra."""
    allowed = installed_with("drumline", frozenset({extra}))
    return [module for module, names in OWNERS().items() if not {canonicalize_name(name) for name in names} & allowed]


@pytest.mark.parametrize("command", ["run", "agent", "doctor", "config"])
def test_a_gpu_nodes_programs_start_with_what_their_extra_brings_and_nothing_else(command):
    hidden = hidden_without("gpu")
    assert "faust" in hidden
    modules = ["drumline.cli.app", f"drumline.cli.{MODULES[command]}"]
    if command != "config":
        modules += [
            "drumline.producers.nvml.samples",
            "drumline.producers.doctor.checks",
            "drumline.producers.decoder.session",
        ]
    child = [sys.executable, "-c", WITHOUT, json.dumps(hidden), *modules]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-800:]


@pytest.mark.parametrize(
    ("extra", "commands", "modules"),
    [
        (
            "sql",
            ("sql", "report", "explain"),
            ("infra.localstack.clickhouse.engine", "views.report.page", "views.sqlshell.output"),
        ),
        ("serve", ("serve",), ("views.serve.web_server", "views.serve.app")),
        ("mcp", ("mcp",), ("views.mcp.protocol",)),
    ],
)
def test_who_reads_a_remote_server_needs_no_engine(extra, commands, modules):
    hidden = hidden_without(extra)
    assert {"psutil", "chdb", "faust"} <= set(hidden)
    loaded = [f"drumline.cli.{MODULES[command]}" for command in commands]
    loaded += [f"drumline.{name}" for name in modules]
    child = [sys.executable, "-c", WITHOUT, json.dumps(hidden), *loaded]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-800:]


def test_traces_of_other_tools_need_no_server_and_no_stream_worker():
    hidden = hidden_without("import")
    assert {"psutil", "chdb", "faust", "clickhouse_connect", "jinja2"} <= set(hidden)
    modules = [f"drumline.cli.{MODULES[command]}" for command in ("import", "verdict")]
    modules += ["drumline.views.verdict.answer_text", "drumline.producers.foreign.kineto.kineto_process"]
    child = [sys.executable, "-c", WITHOUT, json.dumps(hidden), *modules]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-800:]


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("clickhouse_connect", "sink", "sinks"),
        ("clickhouse_connect.driver", "explain", "sql"),
        ("psutil", "up", "local"),
        ("faust", "stream", "streams"),
        ("vl_convert", "report", "report"),
        ("msgspec", "verdict", "import"),
        ("pyarrow", "import", "import"),
        ("jinja2", "verdict", "report"),
        ("no_such_module", "sql", "all"),
    ],
)
def test_a_missing_package_names_the_extra_that_has_it(module, command, extra):
    assert extra_of(module, command) == extra
