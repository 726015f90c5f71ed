"""Long-running commands end by SIGTERM with 0 and by Ctrl-C with 130, long before a pod or a unit is killed.

A program that does not end in 25 s ends with 1 (infra/runtime/signals.py). Worker, sink and agent have tests of their
own.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress

import pytest
from support.wait_limit import WAIT_S

#: Time from the signal after which a pod is killed; a program ends 5 s before it at the latest; s.
KILLED_S = 30.0
BOTH = pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])


@contextmanager
def running(clickhouse, *arguments, **more):
    """Yield the process of a command; stderr joins stdout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRUMLINE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "drumline.cli.app", *arguments], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env=kept | more | {"DRUMLINE_CLICKHOUSE__URL": clickhouse},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def printed(process, text):
    """The first line with a text that the command prints."""
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"{text!r} was not printed; exit {process.wait()}")


def end(process, number, code):
    sent = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == code, output
    assert time.monotonic() - sent < KILLED_S, output
    return output


@BOTH
def test_the_web_page_ends_while_a_page_waits_for_clickhouse(number, code):
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        ended_requests() as get,
        running(f"http://127.0.0.1:{silent.getsockname()[1]}", "serve", "--port", "0") as page,
    ):
        get(printed(page, "open http").split()[1])
        silent.settimeout(WAIT_S)
        silent.accept()  # asked, and never answered
        end(page, number, code)  # uvicorn prints the request that it cuts off


@contextmanager
def ended_requests():
    """Yield a function that sends a request in a thread; at the end all have ended."""
    threads = []

    def send(url):
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=WAIT_S).read()

    def get(url):
        threads.append(threading.Thread(target=send, args=(url,)))
        threads[-1].start()

    yield get
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


@BOTH
def test_notices_end_between_two_passes(tmp_path, number, code):
    (tmp_path / "key").write_text(f"whsec_{'A' * 43}=")
    webhook = {
        "DRUMLINE_OFFENDERS__WEBHOOK": "http://127.0.0.1:9/",
        "DRUMLINE_OFFENDERS__WEBHOOK_KEY_FILE": str(tmp_path / "key"),
    }
    with running("http://127.0.0.1:9", "notify", "--every", "3600", **webhook) as notices:
        printed(notices, "faults cannot be read")
        assert "Traceback" not in end(notices, number, code)
