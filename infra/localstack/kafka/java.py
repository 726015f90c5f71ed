"""Which Java runs the local broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from drumline.infra.config.state_dir import StackError

#: Kafka 4's brokers need Java 17.
OLDEST = 17
#: The distribution's own Java: 17 in Debian 12, 21 in Debian 13.
INSTALL = "install it with `apt-get install default-jre-headless maven` (`make setup` does that as root)"


def java_version(program: str) -> int | None:
    """The major version that `java -version` states; None where it is no Java."""
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def find_java() -> str:
    """JAVA_HOME's java, else the one on PATH. Raises StackError that says what to install."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        raise StackError(f"the local broker needs Java {OLDEST} or newer and there is no `java` on PATH; {INSTALL}")
    version = java_version(program)
    if version is None:
        hint = "; JAVA_HOME points there" if home else ""
        raise StackError(f"{program} does not run{hint}; the local broker needs Java {OLDEST} or newer; {INSTALL}")
    if version < OLDEST:
        raise StackError(f"{program} is Java {version}; the local broker needs {OLDEST} or newer; {INSTALL}")
    return program


def find_maven() -> str:
    """`mvn` on PATH. Raises StackError that says what to install."""
    program = shutil.which("mvn")
    if program is None:
        raise StackError(f"Kafka's jars are fetched by Maven and there is no `mvn` on PATH; {INSTALL}")
    return program
