"""Messages of the collector to its decoder, and warnings of both to the job's stderr.

A message is one datagram. b"J" begins an event: a JSON object with the key "event". b"M" begins a mark (MARK). b"F"
begins the description of a stack, b"S" a sample of all threads.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import sys
from collections.abc import Mapping

from drumline.producers.ipc.descriptor import file_of

#: A step or scope of the API begins or ends: b"M", MARK_BEGIN or MARK_END, id, time (ns since the epoch); name follows.
MARK = struct.Struct("<cBIq")
#: CUPTI_ACTIVITY_FLAG_MARKER_START and _END, as in activity.py.
MARK_BEGIN, MARK_END = 2, 4
#: Lowest id of a mark; CUPTI counts the ids of its markers from 1.
FIRST_MARK_ID = 0x8000_0000
#: A stack: JSON [number, [[function, file, line], ...]] follows, the outermost frame first.
FRAMES = b"F"
#: A sample: b"S", time (ns since the epoch), main thread; then for each thread its name and the number of its stack.
SAMPLE, PLACE = struct.Struct("<cqI"), struct.Struct("<II")
_STDERR = file_of(2)


def thread_name(ident: int) -> int:
    """Return CUPTI's name of a thread (threading.get_ident): the low half of its pthread_t."""
    return ident & 0xFFFF_FFFF


def warn(text: str, environment: Mapping[str, str] = os.environ) -> None:
    """Write a line to stderr, unless DRUMLINE_QUIET is 1 or the job has a connection at that number. Never raises."""
    if environment.get("DRUMLINE_QUIET") != "1" and sys.stderr:  # print would take None for stdout
        with contextlib.suppress(Exception):
            if file_of(2) == _STDERR or not stat.S_ISSOCK(os.fstat(2).st_mode):
                print(f"drumline: {text}", file=sys.stderr, flush=True)
