"""The packages that drumline was installed with come before those that PYTHONPATH brings for a job.

Clusters hand a job's packages over in PYTHONPATH, often for another Python: a numpy found there would end `drumline
run` before the job begins, and the decoder beside it. Standard library only: nothing else may be imported before this.
"""

from __future__ import annotations

import os
import sys


def prefer_own_packages() -> None:
    """Put what PYTHONPATH brought at the end of sys.path; drumline itself may have come that way."""
    brought = {os.path.abspath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    sys.path.sort(key=lambda entry: os.path.abspath(entry) in brought)
