"""Python programs that are slow for a reason, and what sampling them must show."""

import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from drumline.producers.host.targets import boot_ns, start_ticks

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

#: The kernel's next process gets the number behind this one.
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


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


@contextmanager
def reusing_pid(folder, kind, pid):
    """Run a program under the number of a process that is gone."""
    for _ in range(100):  # another process of this machine may take it
        LAST_PID.write_text(str(pid - 1))
        with python_job(folder, kind) as job:
            if job.pid == pid:
                yield job
                return
    raise AssertionError(f"the number {pid} is not given out")


def started_ns(pid):
    """Return when a process started, by this one's clock, which test_other_days.py moves; psutil has the kernel's."""
    ticks = start_ticks(Path(f"/proc/{pid}"))
    return boot_ns() + ticks * 10**9 // os.sysconf("SC_CLK_TCK")
