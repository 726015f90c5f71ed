"""Kafka's jars: fetched once by Maven from the committed pom into the user's cache; offline afterwards.

    CACHE/kafka-HASH/*.jar   HASH = sha256 of pom.xml; the folder appears whole, by a rename
    CACHE/kafka.lock         held while Maven runs, so that two `up` fetch once
    CACHE/maven.log          output of the last run of Maven

Each start of the broker compares them with `jars.sha256` beside the pom: names and contents, no jar more or less.
`python -m drumline.infra.localstack.kafka.jars` checks Java, fetches them and prints the folder (`make setup`).
"""

from __future__ import annotations

import collections
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from drumline.infra.config.settings import Settings, settings
from drumline.infra.config.state_dir import StackError, locked
from drumline.infra.localstack.kafka.java import find_java, find_maven

POM = Path(__file__).parents[1] / "assets" / "kafka" / "pom.xml"
#: Sums of the pom's jars, as sha256sum writes them.
SUMS = POM.with_name("jars.sha256")
DOWNLOADED = re.compile(r"Downloaded from \S+: \S+/(\S+) \(([\d.]+) (B|kB|MB)")
UNIT_BYTES = {"B": 1, "kB": 1_000, "MB": 1_000_000}


def jar_folder(settings: Settings) -> Path:
    """Return the folder of this pom's jars, which may not exist yet."""
    return settings.local.cache / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"


def ensure_jars(settings: Settings) -> Path:
    """Return the folder with the broker's jars; fetch them if it does not exist (progress on stderr).

    Raises StackError: no Maven and no jars, Maven failed (the message has its errors), or other jars than expected.
    """
    folder = jar_folder(settings)
    if folder.is_dir():
        verify(folder)
        return folder
    try:
        maven = find_maven()
    except StackError as error:
        raise StackError(f"{error}\nWithout a network: bring the jars to {folder} (docs/guide/deploy.md)") from None
    cache = settings.local.cache
    busy = f"another process has been fetching Kafka's jars into {cache} for ten minutes"
    with locked(cache / "kafka.lock", busy, timeout_s=600):
        if not folder.is_dir():
            scratch = cache / f"{folder.name}.part"
            shutil.rmtree(scratch, ignore_errors=True)
            fetch(maven, scratch, cache / "maven.log")
            verify(scratch)
            scratch.rename(folder)
    return folder


def verify(folder: Path) -> None:
    """Compare a folder of jars with SUMS. Raises StackError with the first names that differ."""
    expected = {name: digest for digest, name in (line.split() for line in SUMS.read_text().splitlines())}
    present: dict[str, str] = {}
    for path in sorted(folder.iterdir()):  # every name: Java loads *.JAR too
        present[path.name] = ""
        if path.is_file():
            with path.open("rb") as content:
                present[path.name] = hashlib.file_digest(content, "sha256").hexdigest()
    if wrong := sorted(name for name in expected.keys() | present.keys() if expected.get(name) != present.get(name)):
        raise StackError(
            f"{folder} has not the jars of drumline's pom: {len(wrong)} are missing, changed or not expected, "
            f"{', '.join(wrong[:3])}. Delete the folder and run the command again; do not use a mirror that brings them"
        )


def fetch(maven: str, folder: Path, log: Path) -> None:
    """Copy the pom's runtime dependencies to `folder` with Maven. Wrong checksums fail (-C).

    Raises:
        StackError: Maven failed.
    """
    command = [maven, "-B", "-C", "-U", "-f", str(POM), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    last: collections.deque[str] = collections.deque(maxlen=400)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with (
        log.open("w") as kept,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run,
    ):
        task = progress.add_task("Kafka's jars: Maven resolves")
        files, size = 0, 0.0
        assert run.stdout is not None
        try:
            for line in run.stdout:
                kept.write(line)
                last.append(line.rstrip())
                if match := DOWNLOADED.search(line):
                    files += 1
                    size += float(match[2]) * UNIT_BYTES[match[3]]
                    progress.update(task, description=f"Kafka's jars: {files} files, {size / 1e6:.1f} MB ({match[1]})")
        except BaseException:
            run.terminate()
            raise
    if run.returncode != 0 or not any(folder.glob("kafka_*.jar")):
        errors = [line.removeprefix("[ERROR] ") for line in last if line.startswith("[ERROR]")]
        raise StackError(
            "Maven could not fetch Kafka's jars: "
            + (errors[0] if errors else f"exit code {run.returncode}")
            + f"\nIts output is in {log}. A proxy or a mirror goes into ~/.m2/settings.xml; then run this again."
        )


def main() -> int:
    """Check Java, fetch the jars and print their folder; return the exit code."""
    try:
        find_java()
        print(ensure_jars(settings()))
    except StackError as error:
        print(f"drumline: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
