"""Waits for `import torch` in every Python below `drumline run` (sitecustomize.py); else it does nothing.

Python imports one sitecustomize. The one that would have been imported without ours is run as usual. Every process pays
for what is imported here, so that is next to nothing.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))


class DrumlineTorch:
    """An import hook for one module. Whoever only asks where torch is (importlib.util.find_spec) does not use it up."""

    _waits = True

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                try:
                    if spec.loader is not None:
                        self._follow(spec.loader)
                except Exception as error:  # a loader that cannot be followed loads all the same
                    _say(error)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            if not self._waits:
                return
            self._waits = False
            try:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                from drumline.producers.collector import torch_hooks as torch_startup

                torch_startup.imported(module)
            except Exception as error:  # never the job's problem
                _say(error)

        loader.exec_module = exec_module


def _say(error: Exception) -> None:
    """As attach.say, which may be what cannot be imported."""
    if os.environ.get("DRUMLINE_QUIET") != "1" and sys.stderr:
        try:
            print(f"drumline: not attached: {type(error).__name__}: {error}", file=sys.stderr)
        except Exception:  # nobody listens: `import torch` goes on
            return


class DrumlineItself:
    """`import drumline` where the job's environment has none of its own. Asked last."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "drumline":
            return None
        file = os.path.join(_PACKAGE, "__init__.py")
        spec = ModuleSpec(name, SourceFileLoader(name, file), origin=file, is_package=True)
        spec.submodule_search_locations = [_PACKAGE]
        return spec


def _theirs() -> None:
    others = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def start() -> None:
    """Others do as _theirs does, so this may run twice."""
    if os.environ.get("DRUMLINE_ATTACH") != "0" and not any(type(f).__name__ == "DrumlineTorch" for f in sys.meta_path):
        sys.meta_path.insert(0, DrumlineTorch())
        sys.meta_path.append(DrumlineItself())
    _theirs()
