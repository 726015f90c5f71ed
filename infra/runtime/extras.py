"""The extra that brings a missing package, for error messages: from drumline's own metadata."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires

#: Module -> distribution, where the names differ by more than - and _.
_DISTRIBUTIONS = {
    "chdb": "chdb-core",
    "faust": "faust-streaming",
    "pynvml": "nvidia-ml-py",
    "vl_convert": "vl-convert-python",
    "yaml": "pyyaml",
}
#: Command -> the extra of its program, preferred where several extras have a package; else the first that has it.
_OF_COMMAND = {
    **dict.fromkeys(("sink", "audit", "migrate", "roles"), "sinks"),
    **dict.fromkeys(("up", "down", "status", "uninstall", "demo"), "local"),
    **dict.fromkeys(("import", "verdict"), "import"),
    **dict.fromkeys(("sql", "explain", "export", "report", "timeline", "top"), "sql"),
}
_BUNDLES = frozenset({"all", "dev", "build"})
_REQUIREMENT = re.compile(r"""([A-Za-z0-9._-]+).*extra == ['"]([\w-]+)['"]""")


def extra_of(module: str, command: str = "") -> str:
    """Return the name of the extra to install for a missing module; "all" where none is known."""
    top = module.partition(".")[0]
    wanted = _DISTRIBUTIONS.get(top, top).replace("_", "-").lower()
    try:
        needs = [match for line in requires("drumline") or [] if (match := _REQUIREMENT.match(line))]
    except PackageNotFoundError:
        needs = []
    extras = [match[2] for match in needs if match[1].lower() == wanted and match[2] not in _BUNDLES]
    preferred = _OF_COMMAND.get(command, "")
    return preferred if preferred in extras else next(iter(extras), "all")
