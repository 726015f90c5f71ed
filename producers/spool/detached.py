"""A process of drumline beside a process of the job, as collector/decoder_process.py starts it.

It detaches from the job's process tree, so that the job never waits for it, and sees the job's end as the end of a
socket.
"""

from __future__ import annotations

import os
import signal

from drumline.infra.runtime import sys_path as own_packages

#: Scheduling priority below the job's.
NICE = 5


def detach(*answer: int) -> None:
    """Go on in a child, and print its pid and `answer` for the job's process.

    Call it before other packages are imported: those of the job come last from then on.
    """
    child = os.fork()
    if child:
        print(f"\n{' '.join(map(str, (child, *answer)))}", flush=True)  # a package of the job may have printed before
        os._exit(0)
    own_packages.prefer_own_packages()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the job's
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)
    os.nice(NICE)
