"""A rank that waits in an operation, and on rank 0 a fake RAS: hanging_with_ras.py LIBRARY PORT ABSENT.

It counts one call less of rank ABSENT, which no process of the job is, so that it has no records.
"""

import ctypes
import json
import os
import sys

from support.dumped_jobs import ras_answer, ras_rank
from support.fakes.fake_ras import FakeRas


def answer(absent):
    """Return the answer about the communicator 11 of fake_nccl.c."""
    calls = 1 + int(os.environ["STEPS"])
    ranks = [ras_rank(rank, os.getpid() + rank, AllReduce=calls - (rank == absent)) for rank in range(absent + 1)]
    values = ras_answer((ranks, []))
    values["communicators"][0]["hash"] = "0xb"
    return json.dumps(values).encode()


if __name__ == "__main__":
    path, port, absent = sys.argv[1:]
    if os.environ["RANK"] == "0":
        FakeRas(answer(int(absent)), address=("127.0.0.1", int(port)))
    os.environ["HOW"] = "wait"
    arguments = [b"hanging", os.environ["NCCL_PROFILER_PLUGIN"].encode(), b"5", b"hang"]
    library = ctypes.CDLL(path)
    library.main(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))
