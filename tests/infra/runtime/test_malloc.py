"""Free heap pages return to the system."""

import subprocess
import sys

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
