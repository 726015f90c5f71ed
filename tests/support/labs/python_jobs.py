"""Python programs that are slow for a reason, and what sampling them must show."""

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drumline.producers.host.targets import START_TICKS, boot_ns, stat_fields

SLEEP = """\
import time

def load():
    time.sleep(600)

def train():
    load()

train()
"""
LOCK = """\
import threading, time

lock = threading.Lock()

def write_checkpoint():
    with lock:
        time.sleep(600)

def train():
    lock.acquire()

threading.Thread(target=write_checkpoint, name="saver", daemon=True).start()
time.sleep(0.1)
train()
"""
#: A call into C that keeps the GIL: the main thread waits for it.
GIL = """\
import ctypes, threading

c = ctypes.PyDLL(None)

def tokenize():
    while True:
        c.usleep(300_000)

def train():
    count = 0
    while True:
        count += 1

threading.Thread(target=tokenize, name="tokenizer", daemon=True).start()
train()
"""
BUSY = """\
def train():
    count = 0
    while True:
        count += 1

train()
"""
#: A step of 50 ms, of which it is late by a part.
STEP = """\
import time

def load():
    time.sleep(LATE)

def forward():
    time.sleep(0.05 - LATE)

def train():
    while True:
        load() if LATE else None
        forward()

train()
"""
PROGRAMS = {
    "sleep": SLEEP, "lock": LOCK, "gil": GIL, "busy": BUSY,
    "late": STEP.replace("LATE", "0.02"), "even": STEP.replace("LATE", "0.0"),
}  # fmt: skip


@dataclass
class Job:
    pid: int
    path: str


@contextmanager
def python_job(folder, kind, ready="print(flush=True)"):
    """Run a program; it has printed a line when its module's code runs."""
    path = folder / kind / "train.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(PROGRAMS[kind])
    run = f"{ready}; exec(compile(open({str(path)!r}).read(), {str(path)!r}, 'exec'))"
    with subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield Job(process.pid, str(path))
        finally:
            process.kill()


def started_ns(pid):
    """Return when a process started, by this one's clock, which test_other_days.py moves; psutil has the kernel's."""
    ticks = int(stat_fields(Path(f"/proc/{pid}/stat").read_bytes())[START_TICKS])
    return boot_ns() + ticks * 10**9 // os.sysconf("SC_CLK_TCK")
