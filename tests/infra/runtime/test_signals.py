"""A long-running program finishes what it has in hand when it is asked to stop, and ends at once when asked again."""

import faulthandler
import os
import signal
import subprocess
import sys

import pytest

from drumline.infra.runtime.signals import ShutdownSignal


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    faulthandler.cancel_dump_traceback_later()
    for number, old in before.items():
        signal.signal(number, old)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_first_signal_asks_and_the_same_one_again_is_no_second(number, code):
    stopping = ShutdownSignal()
    assert (stopping(), stopping.code) == (False, 0)
    for item in (number, number, signal.SIGTERM):  # timeout(1) signals the process, and then its group
        os.kill(os.getpid(), item)
    assert (stopping(), stopping.code) == (True, code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_later_signal_ends_the_process_though_it_waits_for_an_answer(number):
    code = (
        "import os, signal; from drumline.infra.runtime import signals; signals.SAME_S = 0.0\n"
        "signals.ShutdownSignal()\n"
        f"os.kill(os.getpid(), signal.SIGTERM); print('goes on'); os.kill(os.getpid(), {int(number)}); print('never')"
    )
    done = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-number, "goes on\n", "")


def test_a_program_that_waits_for_an_answer_ends_in_time_and_prints_where_it_waited():
    code = (
        "import os, signal, time; from drumline.infra.runtime import signals; signals.LONGEST_S = 0.1\n"
        "signals.ShutdownSignal()\n"
        "def ask_for_ever():\n    while True: time.sleep(60)\n"
        "os.kill(os.getpid(), signal.SIGTERM); ask_for_ever()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ask_for_ever" in done.stderr
