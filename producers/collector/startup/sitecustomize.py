"""Starts drumline_hook in every Python below `drumline run`.

A job may call tools that run on a very old Python. On one that is too old for PyTorch this only runs the sitecustomize
that this file shadows.
"""

import os
import sys

if sys.version_info >= (3, 8):  # noqa: UP036
    import drumline_hook  # type: ignore[import-not-found]  # beside this file

    drumline_hook.start()
else:
    _path, _folder = sys.path[:], os.path.dirname(os.path.abspath(__file__))
    _this = sys.modules.pop("sitecustomize")  # kept: Python 2 clears a module without references
    sys.path[:] = [entry for entry in _path if os.path.abspath(entry) != _folder]
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        sys.modules["sitecustomize"] = _this
    sys.path[:] = _path
