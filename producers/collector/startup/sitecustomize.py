"""Runs at the start of every Python below `drumline run`, however old it is: tools that a job calls may be. One that is
too old for PyTorch is left alone, and the sitecustomize that it would have had without this one is run."""

import os
import sys

if sys.version_info >= (3, 8):  # noqa: UP036
    import drumline_hook  # type: ignore[import-not-found]  # beside this file

    drumline_hook.start()
else:
    _path, _here = sys.path[:], os.path.dirname(os.path.abspath(__file__))
    _this = sys.modules.pop("sitecustomize")  # kept: Python 2 empties a module that nobody holds
    sys.path[:] = [entry for entry in _path if os.path.abspath(entry) != _here]
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        sys.modules["sitecustomize"] = _this
    sys.path[:] = _path
