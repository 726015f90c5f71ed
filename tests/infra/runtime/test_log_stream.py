"""Log lines that cannot be written are lost and counted; the program goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drumline.infra.runtime.log_stream import LogStream

FULL = Path("/dev/full")
LOGGING = """
import logging, structlog
from drumline.infra.config.settings import Settings
from drumline.infra.telemetry.logging import configure

configure(Settings(), "test")
for number in range(1000):
    structlog.get_logger().warning("line", number=number)
    logging.getLogger(f"library{number}").warning("line of a library")
print("goes on")
"""


def test_a_program_whose_log_is_on_a_full_disk_goes_on_and_ends_well() -> None:
    with FULL.open("w") as log:
        command = [sys.executable, "-c", LOGGING]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "goes on\n")


def test_a_program_whose_log_has_no_reader_goes_on() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", LOGGING]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, "goes on\n")


@pytest.mark.parametrize("lines", [1, 3])
def test_the_first_line_after_a_full_disk_follows_the_number_of_lost_ones(tmp_path: Path, lines: int) -> None:
    log = tmp_path / "log"
    descriptor, full = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.open(FULL, os.O_WRONLY)
    disk = os.dup(descriptor)
    stream = LogStream(disk)
    stream.write("before\n")
    os.dup2(full, disk)
    for number in range(lines):
        stream.write(f"lost {number}\n")
    assert stream.lost == lines
    os.dup2(descriptor, disk)
    stream.write("after\n")
    assert log.read_text() == f"before\n{lines} lines of this log are lost: No space left on device\nafter\n"
    assert stream.lost == 0
