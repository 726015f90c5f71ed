"""Free heap pages return to the system."""

import subprocess
import sys

import pytest

HELD = """
import psutil
from drumline.infra.runtime import malloc as heap

def resident():
    return psutil.Process().memory_info().rss >> 20

held = [bytes(50_000) for _ in range(4_000)]  # below the size at which malloc asks for pages of their own
last = bytes(50_000)  # keeps the end of the heap, so that nothing above can go back by itself
full = resident()
del held
print(full, resident(), heap.trim(), resident())
"""


def test_what_is_freed_below_something_in_use_goes_back_to_the_system():
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    full, freed, gave, after = done.stdout.split()
    assert int(full) - int(freed) < 20
    assert gave == "True"
    assert int(full) - int(after) > 150


SHARED = """
import re
import sys
import threading
from pathlib import Path
from drumline.infra.runtime import malloc as heap

def main_heap_mb():
    [(first, last)] = re.findall(r"(\\w+)-(\\w+) .*\\[heap\\]", Path("/proc/self/maps").read_text())
    return (int(last, 16) - int(first, 16)) >> 20

if sys.argv[1] == "shared":
    assert heap.share_heap()
before = main_heap_mb()
held = []
thread = threading.Thread(target=lambda: held.extend(bytes(50_000) for _ in range(1_000)))
thread.start()
thread.join()
print(main_heap_mb() - before)
"""


@pytest.mark.parametrize(("heaps", "in_the_main_heap"), [("shared", True), ("several", False)])
def test_threads_allocate_from_the_main_heap_once_it_is_shared(heaps: str, in_the_main_heap: bool) -> None:
    done = subprocess.run([sys.executable, "-c", SHARED, heaps], capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 40) == in_the_main_heap
