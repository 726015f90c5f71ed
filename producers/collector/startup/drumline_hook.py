"""Attaches drumline after `import torch`, in every Python process below `drumline run` (sitecustomize.py).

Adapters of inference engines join the modules of ENGINES likewise, once the engine has imported them.

Python imports one sitecustomize only, so the one that this folder shadows is run as usual. Every process pays for the
imports of this module: keep them next to nothing.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(_FOLDER)))


#: Module of an inference engine -> adapter, a module of drumline.producers.engines that joins it.
ENGINES = {
    "vllm.v1.core.sched.scheduler": "vllm_engine",
    "vllm.v1.worker.gpu_worker": "vllm_engine",
    "sglang.srt.managers.scheduler": "sglang_engine",
    "transformers.generation.continuous_batching.continuous_api": "transformers_batching",
    "transformers.generation.utils": "transformers_generate",
    "transformers.cli.serving.server": "transformers_batching",
}


class AfterImport:
    """Calls `loaded` after the first real import of a module; importlib.util.find_spec alone does not use it up."""

    def __init__(self, names: Any) -> None:
        self._pending = set(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return a module's spec from another finder, with its loader wrapped; None for modules of no interest."""
        if name not in self._pending:
            return None
        for finder in list(sys.meta_path):
            find: Any = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                try:
                    if spec.loader is not None:
                        self._wrap(name, spec.loader)
                except Exception as error:  # a loader that cannot be wrapped loads all the same
                    _warn(error)
                return spec
        return None

    def _wrap(self, name: str, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            if name not in self._pending:
                return
            self._pending.discard(name)
            try:
                if not self._pending and self in sys.meta_path:
                    sys.meta_path.remove(self)
                self.loaded(module)
            except Exception as error:  # must not reach the job
                _warn(error)

        loader.exec_module = exec_module

    def loaded(self, module: Any) -> None:
        """Take a module that was just imported."""


class TorchImportHook(AfterImport):
    """Calls torch_hooks after `import torch`."""

    #: Python, the spool's root and the agent's user for a process that `drumline run` has not prepared; None below it.
    late: tuple[str, str, str] | None = None

    def loaded(self, module: Any) -> None:
        """Prepare to attach when CUDA is first used."""
        if self.late:
            from drumline.producers.collector import late

            late.prepare(os.environ, *self.late)
        from drumline.producers.collector import torch_hooks

        torch_hooks.imported(module)


class EngineImportHook(AfterImport):
    """Lets the adapter of an inference engine join each of its modules."""

    def loaded(self, module: Any) -> None:
        """Join a module of an engine. Nothing of drumline is loaded where the job records none."""
        from importlib import import_module

        if os.environ.get("DRUMLINE_PYTHON") and os.environ.get("DRUMLINE_COLLECT__POLICY") != "off":
            import_module("drumline.producers.engines." + ENGINES[module.__name__]).imported(module)


def _warn(error: Exception) -> None:
    """Do as ipc.events.warn, which may be what cannot be imported."""
    if os.environ.get("DRUMLINE_QUIET") != "1" and sys.stderr:
        try:
            print(f"drumline: not attached: {type(error).__name__}: {error}", file=sys.stderr)
        except Exception:  # stderr is closed: `import torch` goes on
            return


class DrumlineFinder:
    """Finds drumline for a job whose environment has none installed; the last finder of all."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of the drumline that this file belongs to; None for other modules."""
        if name != "drumline":
            return None
        file = os.path.join(_PACKAGE, "__init__.py")
        spec = ModuleSpec(name, SourceFileLoader(name, file), origin=file, is_package=True)
        spec.submodule_search_locations = [_PACKAGE]
        return spec


def _run_shadowed_sitecustomize() -> None:
    path = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def start() -> None:
    """Install the finders of a process below `drumline run`."""
    _install()
    _run_shadowed_sitecustomize()


def wait(python: str, root: str, agent: str = "") -> None:
    """Install the finders of a process that `drumline run` may know nothing of, for the hook in its environment."""
    if not os.environ.get("DRUMLINE_PYTHON") or os.environ.get("DRUMLINE_LATE"):
        _install((python, root, agent))


def _install(late: tuple[str, str, str] | None = None) -> None:
    """Install the finders, once: the sitecustomize of another tool may run this one again."""
    installed = any(type(finder).__name__ == "TorchImportHook" for finder in sys.meta_path)
    if os.environ.get("DRUMLINE_ATTACH") != "0" and not installed:
        hook = TorchImportHook(("torch",))
        hook.late = late
        sys.meta_path[:0] = [hook, EngineImportHook(ENGINES)]
        sys.meta_path.append(DrumlineFinder())
