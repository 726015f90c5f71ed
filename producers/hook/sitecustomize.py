"""Runs at the start of every Python below `drumline run`, and waits for `import torch`; else it does nothing.

Python imports one sitecustomize. The one that would have been imported without this is run as usual.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Torch:
    """An import hook for one module."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            load = loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                try:
                    _startup().imported(module)
                except Exception as error:  # never the job's problem
                    print(f"drumline: not attached: {type(error).__name__}: {error}", file=sys.stderr)

            loader.exec_module = exec_module
        return spec


def _startup() -> Any:
    """drumline.producers.torch_startup, also where the job's environment has no drumline installed."""
    if importlib.util.find_spec("drumline") is None:
        for name, folder in (("drumline", ""), ("drumline.producers", os.environ["DRUMLINE_SOURCE"])):
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [folder]
            sys.modules[name] = importlib.util.module_from_spec(spec)
    from drumline.producers import torch_startup

    return torch_startup


def _theirs() -> None:
    others = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("DRUMLINE_ATTACH") != "0":
    sys.meta_path.insert(0, _Torch())
_theirs()
