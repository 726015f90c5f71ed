"""Search for the Java and the Maven of the local broker."""

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
    """Return the major version of `java -version`; None where the program is no Java."""
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match else None


def find_java() -> str:
    """Return JAVA_HOME's java, else the one on PATH. Raises StackError with what to install."""
    java_home = os.environ.get("JAVA_HOME")
    program = str(Path(java_home) / "bin" / "java") if java_home else shutil.which("java")
    if program is None:
        raise StackError(f"the local broker needs Java {OLDEST} or newer and there is no `java` on PATH; {INSTALL}")
    version = java_version(program)
    if version is None:
        hint = "; JAVA_HOME points there" if java_home else ""
        raise StackError(f"{program} does not run{hint}; the local broker needs Java {OLDEST} or newer; {INSTALL}")
    if version < OLDEST:
        raise StackError(f"{program} is Java {version}; the local broker needs {OLDEST} or newer; {INSTALL}")
    return program


def find_maven() -> str:
    """Return `mvn` on PATH. Raises StackError with what to install."""
    program = shutil.which("mvn")
    if program is None:
        raise StackError(f"Kafka's jars are fetched by Maven and there is no `mvn` on PATH; {INSTALL}")
    return program
