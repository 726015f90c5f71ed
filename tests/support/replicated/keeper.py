"""An Apache ZooKeeper on loopback, which ClickHouse takes as its Keeper; Maven fetches its jars once."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.wait_limit import WAIT_S

from drumline.infra.localstack.ephemeral import free_ports
from drumline.infra.localstack.kafka.java import find_java

POM = Path(__file__).with_name("zookeeper.xml")
#: `forceSync`: what a power loss would take is no matter here, and every change of a table waits for it.
CONFIG = """tickTime=1000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
forceSync=no
"""


def jars(cache: Path) -> Path:
    """Return the folder with ZooKeeper's jars, fetched into the cache where they are missing. Raises StackError."""
    folder = cache / f"zookeeper-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"
    if not folder.is_dir():
        scratch = folder.with_suffix(".part")
        shutil.rmtree(scratch, ignore_errors=True)
        command = ["mvn", "-B", "-C", "-q", "-f", str(POM), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={scratch}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
        scratch.rename(folder)
    return folder


@contextmanager
def keeper(folder: Path, cache: Path) -> Iterator[int]:
    """Run it inside the block, with its data in the folder; gives the port."""
    classes = f"{jars(cache)}/*"
    [port] = free_ports(1)
    folder.mkdir()
    config = folder / "zoo.cfg"
    config.write_text(CONFIG.format(data=folder / "data", port=port))
    command = [find_java(), "-Xmx192m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classes]
    command += ["org.apache.zookeeper.server.ZooKeeperServerMain", str(config)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + WAIT_S
        while not _listens(port):
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < until, "it does not listen"
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
