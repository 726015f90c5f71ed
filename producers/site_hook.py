"""The hook that `drumline hook install` puts into an environment: one .pth file in its site-packages.

Python runs a line of a .pth file that begins with `import` when it starts (docs.python.org, "site"). The line names
files of this installation of drumline, and does nothing once they are gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from drumline.infra.runtime import spool_defaults
from drumline.producers.ipc.plain_file import AGENT_USER
from drumline.producers.launcher import HOOK, PLUGIN
from drumline.producers.nccl_profiler import library

FILE = "drumline.pth"
#: Time for a Python to name its site-packages; s.
ANSWER_S = 60.0
_LINE = (
    "import os, importlib.util as u; p = {hook!r}; "
    "s = u.spec_from_file_location('drumline_hook', p) if os.access(p, os.R_OK) else None; "
    "m = s and u.module_from_spec(s); s and (s.loader.exec_module(m), m.wait({python!r}, {root!r}, {agent!r}))\n"
)


class BadEnvironment(ValueError):
    """No environment to put the hook into; the message names what to do."""


def site_packages(python: str) -> Path:
    """Return the site-packages of a Python. Runs it. Raises BadEnvironment."""
    command = [python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadEnvironment(f"{python} does not run ({type(error).__name__}): name one with --python PATH") from None
    return Path(done.stdout.splitlines()[-1] if done.stdout.strip() else "")


def write_hook(folder: Path, spool: str = "") -> tuple[Path, str]:
    """Write the hook into a site-packages folder; return its path and the root of the spool. Raises BadEnvironment."""
    root = os.path.abspath(spool or os.environ.get("DRUMLINE_SPOOL__ROOT") or spool_defaults.ROOT)
    path = folder / FILE
    line = _LINE.format(
        hook=str(HOOK / "drumline_hook.py"), python=sys.executable, root=root, agent=os.environ.get(AGENT_USER, "")
    )
    if not folder.is_dir():
        raise BadEnvironment(f"{folder} is no folder: name the environment's site-packages with --into FOLDER")
    try:
        part = path.with_suffix(".part")
        part.write_text(line)
        part.chmod(0o644)
        part.replace(path)
    except OSError as error:
        raise BadEnvironment(f"{path}: {error.strerror}; run it as the owner of the environment") from None
    return path, root


def remove_hook(folder: Path) -> Path | None:
    """Remove the hook, and return its path; None where there is none. Raises BadEnvironment."""
    path = folder / FILE
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadEnvironment(f"{path}: {error.strerror}; run it as the owner of the environment") from None
    return path


def nccl_variables(root: str) -> dict[str, str]:
    """Return the variables with which NCCL loads drumline's plugin; {} where it was not built."""
    plugin = library.path()
    return {PLUGIN: plugin, library.FOLDER_VARIABLE: os.path.join(root, spool_defaults.RINGS)} if plugin else {}
