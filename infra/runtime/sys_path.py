"""Order of sys.path: the packages installed with drumline come before those of PYTHONPATH.

Clusters pass a job's packages in PYTHONPATH, often for another Python. A numpy from there would end `drumline run`
before the job begins, and the decoder. The function must run before any other import.
"""

from __future__ import annotations

import os
import sys


def prefer_own_packages() -> None:
    """Move the entries of PYTHONPATH to the end of sys.path; drumline itself may be in one of them."""
    entries = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    sys.path.sort(key=lambda entry: os.path.abspath(entry) in entries)
