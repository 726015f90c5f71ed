"""Kafka's jars: fetched once from a Maven repository into the user's cache; offline afterwards.

    CACHE/kafka-HASH/*.jar   HASH = sha256 of jars.sha256; the folder appears whole, by a rename
    CACHE/kafka.lock         held while they are fetched, so that two `up` fetch once

`jars.sha256` names them all, with their places in the repository. Each fetch and each start of the broker compares:
names and contents, no jar more or less. `make lock-jars` renews the list from the pom beside it.
`python -m drumline.infra.localstack.kafka.jars` checks Java, fetches them and prints the folder (`make setup`).
"""

from __future__ import annotations

import hashlib
import http.client
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from drumline.infra.config.settings import Settings, settings
from drumline.infra.config.state_dir import StackError, locked
from drumline.infra.localstack.kafka.java import find_java

#: Sums of the jars, as sha256sum writes them, of their paths in a Maven repository.
SUMS = Path(__file__).parents[1] / "assets" / "kafka" / "jars.sha256"
#: Maven's own; a site that cannot reach it brings the jars along.
REPOSITORY = "https://repo.maven.apache.org/maven2"
#: Jars fetched at once, attempts for each, the pause before the next attempt, and the longest silence of a server; s.
AT_ONCE, ATTEMPTS, PAUSE_S, SILENCE_S = 8, 3, 1.0, 60.0


def listed() -> dict[str, str]:
    """Return the jars that the broker runs on: path in a Maven repository -> sha256, hex digits."""
    return {path: digest for digest, path in (line.split() for line in SUMS.read_text().splitlines())}


def jar_folder(settings: Settings) -> Path:
    """Return the folder of these jars, which may not exist yet."""
    return settings.local.cache / f"kafka-{hashlib.sha256(SUMS.read_bytes()).hexdigest()[:16]}"


def ensure_jars(settings: Settings) -> Path:
    """Return the folder with the broker's jars; fetch them if it does not exist (progress on stderr).

    Raises StackError: a jar cannot be fetched, or there are other jars than expected.
    """
    folder = jar_folder(settings)
    if folder.is_dir():
        verify(folder)
        return folder
    cache = settings.local.cache
    busy = f"another process has been fetching Kafka's jars into {cache} for ten minutes"
    with locked(cache / "kafka.lock", busy, timeout_s=600):
        if not folder.is_dir():
            scratch = cache / f"{folder.name}.part"
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            fetch(scratch, folder)
            verify(scratch)
            scratch.rename(folder)
    return folder


def verify(folder: Path) -> None:
    """Compare a folder of jars with the list. Raises StackError with the first names that differ."""
    expected = {PurePosixPath(path).name: digest for path, digest in listed().items()}
    present: dict[str, str] = {}
    for path in sorted(folder.iterdir()):  # every name: Java loads *.JAR too
        present[path.name] = ""
        if path.is_file():
            with path.open("rb") as content:
                present[path.name] = hashlib.file_digest(content, "sha256").hexdigest()
    if wrong := sorted(name for name in expected.keys() | present.keys() if expected.get(name) != present.get(name)):
        raise StackError(
            f"{folder} has not the jars of drumline's list: {len(wrong)} are missing, changed or not expected, "
            f"{', '.join(wrong[:3])}. Delete the folder and run the command again; do not use a mirror that brings them"
        )


def fetch(scratch: Path, folder: Path) -> None:
    """Fetch all jars of the list into `scratch`; `folder` is where they will lie.

    Raises StackError: a jar could not be fetched in ATTEMPTS attempts; the message has the first one's address.
    """
    columns = (TextColumn("Kafka's jars"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with (
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        task = progress.add_task("", total=None)
        running = [
            pool.submit(_fetch_one, f"{REPOSITORY}/{path}", scratch, lambda size: progress.advance(task, size))
            for path in listed()
        ]
        try:
            for jar in running:
                jar.result()
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            pool.shutdown(cancel_futures=True)
            raise StackError(
                f"Kafka's jars could not be fetched: {error}. HTTPS_PROXY names a proxy; run this again. "
                f"Without a network: bring the jars to {folder} (docs/guide/deploy.md)"
            ) from None


def _fetch_one(address: str, scratch: Path, arrived: Callable[[int], None]) -> None:
    """Fetch one jar, of at most some MB; `arrived` is called with its bytes."""
    target = scratch / PurePosixPath(address).name
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with urllib.request.urlopen(address, timeout=SILENCE_S) as answer:
                content = answer.read()  # at once: an answer that breaks off is an error then, and jars are small
            target.write_bytes(content)
            arrived(len(content))
            return
        except (OSError, http.client.HTTPException) as error:
            is_final = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if is_final or attempt == ATTEMPTS:
                raise OSError(f"{address}: {error}") from None
            time.sleep(PAUSE_S)


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
