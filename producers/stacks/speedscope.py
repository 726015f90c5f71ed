"""Reader of what py-spy writes: `py-spy record --threads --format speedscope`.

Names of functions, files and threads are the job's text: they are bounded and made printable before anything else
reads them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

#: Most bytes of an output that are read: a hundred samples of some hundred threads take 2 MB.
MAX_BYTES = 32 << 20
#: Most characters of a name of a function or thread, and of a file.
MAX_NAME, MAX_FILE = 128, 256
_THREAD = re.compile(r"^Thread (\d{1,10}|0x[0-9A-Fa-f]{1,16})(?: \"(.*)\")?$", re.DOTALL)


class BadOutput(ValueError):
    """An output that no py-spy writes."""


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """One Python frame. `line` is that of the instruction which runs, 0 = not known."""

    function: str
    file: str
    line: int


#: Frames from the outermost to the innermost.
Stack = tuple[PythonFrame, ...]


@dataclass(slots=True)
class ThreadSamples:
    """Samples of one thread: how often each stack was seen.

    `label`: py-spy's id of it. `number`: its id on the host; 0 before Python 3.11, where py-spy knows POSIX's only.
    """

    label: str
    number: int
    name: str
    stacks: Counter[Stack] = field(default_factory=Counter)


def printable(text: str, most: int, *, keep_end: bool = False) -> str:
    """Return a text without control characters and separators of stacks, cut at one end where it is too long."""
    clean = "".join(c if c.isprintable() and c != ";" else "?" for c in text.encode(errors="replace").decode())
    if len(clean) <= most:
        return clean
    return f"…{clean[-(most - 1) :]}" if keep_end else f"{clean[: most - 1]}…"


def read_samples(output: bytes, parts: int = 1) -> list[list[ThreadSamples]]:
    """Return the samples of each thread, in so many parts of equal length. Raises BadOutput."""
    if len(output) > MAX_BYTES:
        raise BadOutput(f"{len(output)} bytes, at most {MAX_BYTES} are read")
    try:
        content = json.loads(output)
        known = [_frame(frame) for frame in content["shared"]["frames"]]
        threads = [_thread(profile, known, parts) for profile in content["profiles"]]
        return [[thread[part] for thread in threads] for part in range(parts)]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadOutput(f"not a speedscope file of py-spy ({type(error).__name__})") from None


def _frame(frame: dict[str, object]) -> PythonFrame | None:
    """Return a frame, None for the pseudo frame by which py-spy names the thread."""
    name, file, line = frame["name"], frame["file"], frame["line"]
    if not isinstance(name, str) or not isinstance(file, str):
        raise TypeError("not a text")
    if not file and name.startswith("thread ("):
        return None
    number = line if isinstance(line, int) and 0 <= line < 1 << 31 else 0
    return PythonFrame(printable(name, MAX_NAME), printable(file, MAX_FILE, keep_end=True), number)


def _thread(profile: dict[str, object], known: list[PythonFrame | None], parts: int) -> list[ThreadSamples]:
    """Return the samples of a thread in each part. A thread that was there from the first sample on has one a read."""
    match = _THREAD.match(str(profile["name"]))
    number = int(match[1]) if match is not None and match[1].isdecimal() else 0
    if match is None or number >= 1 << 31:
        raise ValueError("a profile without a thread")
    samples = profile["samples"]
    if not isinstance(samples, list):
        raise TypeError("no samples")
    ends = [len(samples) * part // parts for part in range(parts + 1)]
    threads = []
    for begin, end in pairwise(ends):
        thread = ThreadSamples(match[1], number, printable(match[2] or "", MAX_NAME))
        for places, count in Counter(tuple(sample) for sample in samples[begin:end]).items():
            if any(place < 0 for place in places):
                raise IndexError("a frame before the first one")
            thread.stacks[tuple(frame for place in places if (frame := known[place]) is not None)] += count
        threads.append(thread)
    return threads
