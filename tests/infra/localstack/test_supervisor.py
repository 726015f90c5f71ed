"""The supervisor on a full disk: a limit of 0 bytes on the size of its files, and /dev/full for its log."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from support.wait_limit import WAIT_S

from drumline.infra.config.state_dir import State, held, read_json, write_json
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.localstack.supervisor import Child

#: A child that ends at once where its disk is full, and runs where it is not.
CHILD = "import pathlib, time; pathlib.Path('written').write_text('x'); time.sleep(600)"


@contextmanager
def supervisor(state: State) -> Iterator[subprocess.Popen[bytes]]:
    child = {"name": "child", "argv": [sys.executable, "-c", CHILD], "cwd": str(state.root), "stop": "term"}
    write_json(state.plan, {"children": [{**child, "log": str(state.logs / "child.log"), "stop_s": 5.0}]})
    command = [sys.executable, "-m", "drumline.infra.localstack.supervisor", str(state.root)]
    with Path("/dev/full").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        assert wait_until(lambda: held(state.lock), WAIT_S)
        yield process
    finally:
        process.terminate()
        process.wait(WAIT_S)


def children(state: State) -> dict[str, Any]:
    return (read_json(state.children) or {}).get("child", {})


def test_a_supervisor_on_a_full_disk_restarts_its_children_until_there_is_space_again(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.create()
    with supervisor(state) as process:
        assert wait_until(lambda: bool(children(state).get("pid")), WAIT_S)
        first = children(state)["pid"]
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))
        psutil.Process(first).kill()
        ended = wait_until(lambda: process.poll() is not None, 3)  # two restarts
        assert not ended
        assert children(state)["pid"] == first  # the file keeps its content while it cannot be replaced
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert wait_until(lambda: children(state).get("pid") not in (None, first), WAIT_S)
        assert psutil.pid_exists(children(state)["pid"])
        assert children(state)["restarts"] > 1
        assert not list(tmp_path.glob("*.json.*"))
    assert process.returncode == 0
    assert children(state)["pid"] is None


#: A child that counts the signals to end within half a second.
COUNTS = """
import signal, time
count = []
signal.signal(signal.SIGTERM, lambda *_: count.append(1))
print("ready", flush=True)
while not count: time.sleep(0.01)
time.sleep(0.5)
print(len(count), flush=True)
"""


def test_a_child_gets_one_signal_to_end_as_a_second_would_end_it_in_its_work(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = Child("counts", [sys.executable, "-c", COUNTS], str(tmp_path), str(log), "term", WAIT_S)
    child.start(time.monotonic())
    assert wait_until(lambda: "ready" in log.read_text(), WAIT_S)
    child.request_end()
    time.sleep(0.2)  # two signals at once would be one
    child.end()
    assert (child.last_exit, log.read_text().split()) == (0, ["ready", "1"])
