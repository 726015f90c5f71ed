"""Short forms of mangled kernel names, for tables that people read.

Source: Itanium C++ ABI, section 5.1.3: a nested name is a run of `<length><identifier>` pairs after `_ZN`.
"""

from __future__ import annotations

import re

_LENGTH = re.compile(r"\d+")


def source_names(mangled: str) -> list[str]:
    """The leading identifiers of a mangled name, outermost first; [] if `mangled` is not one."""
    if not mangled.startswith("_Z"):
        return []
    nested = mangled.startswith("_ZN")
    at = 3 if nested else 2
    names: list[str] = []
    while (nested or not names) and (found := _LENGTH.match(mangled, at)):
        at = found.end() + int(found.group())
        names.append(mangled[found.end() : at])
    return names


def short_kernel_name(name: str) -> str:
    """The innermost identifier: `layer_norm` for `_ZN2at6native10layer_normIfE`. Unmangled names stay as they are."""
    names = source_names(name)
    return names[-1] if names else name
