"""Samples of one process as bounded rows of gpu.stack.v1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from drumline.producers.stacks.speedscope import PythonFrame, Stack, ThreadSamples, printable
from drumline.schemas.bounds.limits import STACKS

#: Most frames of a stack, the innermost; most stacks of a process, those seen most.
MOST_FRAMES, MOST_STACKS = 64, 200
#: Most bytes of all stacks of a process.
MOST_BYTES = STACKS.total // 2
#: Most characters of a stack, and of a file in it.
MOST_TEXT, MOST_FILE = STACKS.length, 80
#: File whose functions run the job's: it was the job's line that called them.
WRAPPERS = "/producers/collector/host_time.py"
_INSTALLED = re.compile(r"^<|/(?:site|dist)-packages/|/lib(?:64)?/python3[^/]*/|^…")


@dataclass(frozen=True, slots=True)
class StackRow:
    """A distinct stack of one thread, as gpu.stack.v1 has it."""

    thread: str
    thread_id: int
    is_main: bool
    samples: int
    gil_samples: int
    stack: str
    function: str
    file: str
    line: int
    caller: str


@dataclass(frozen=True, slots=True)
class FoldedStacks:
    """Rows of one sampling. `total`: times that the process was read. `left_out`: stacks beyond the bounds."""

    rows: Sequence[StackRow]
    total: int
    left_out: int


def text_of(frame: PythonFrame, most: int = MOST_FILE) -> str:
    """Return `function (file:line)`, the last parts of the file only."""
    return f"{frame.function} ({printable(frame.file, most, keep_end=True)}:{frame.line})"


def folded(stack: Stack) -> str:
    """Return the text of a stack: its innermost frames, as many as fit."""
    texts: list[str] = []
    length = -1
    for frame in reversed(stack[-MOST_FRAMES:]):
        text = text_of(frame)
        length += len(text) + 1
        if length > MOST_TEXT:
            break
        texts.append(text)
    return ";".join(reversed(texts))


def caller_of(stack: Stack) -> str:
    """Return the innermost frame of the job's own code, "" without one."""
    written = (frame for frame in reversed(stack) if frame.file and not _INSTALLED.search(frame.file))
    frame = next(written, None)
    return text_of(frame, most=len(frame.file)) if frame is not None else ""


def fold(pids: Collection[int], samples: Sequence[ThreadSamples], holders: Sequence[ThreadSamples]) -> FoldedStacks:
    """Return the rows of a process, the stacks seen most first.

    `pids`: its numbers, which are the main thread's too. `samples`: of all threads. `holders`: of a second reader that
    saw only the thread that holds the GIL.
    """
    threads = {thread.label: thread for thread in (*holders, *samples)}
    main = {label for label, thread in threads.items() if _is_main(pids, thread)}
    seen: Counter[tuple[str, Stack]] = Counter()
    holding: Counter[tuple[str, Stack]] = Counter()
    for reader, counter in ((samples, seen), (holders, holding)):
        for thread in reader:
            for whole, count in thread.stacks.items():
                if stack := tuple(frame for frame in whole if not frame.file.endswith(WRAPPERS)):
                    counter[thread.label, stack] += count
    keys = sorted(
        seen | holding, key=lambda key: (-(seen[key] + holding[key]), key[0] not in main, key[0], folded(key[1]))
    )
    rows: list[StackRow] = []
    size = 0
    for label, stack in keys[:MOST_STACKS]:
        row = _row(threads[label], label in main, stack, seen[label, stack], holding[label, stack])
        size += len(row.stack.encode())
        if size > MOST_BYTES:
            break
        rows.append(row)
    total = max((sum(thread.stacks.values()) for thread in samples), default=0)
    return FoldedStacks(rows, total, len(keys) - len(rows))


def _is_main(pids: Collection[int], thread: ThreadSamples) -> bool:
    """Return whether it is the main thread: by its id, or where that is not known, as the one that runs a module."""
    if thread.number:
        return thread.number in pids
    return thread.name == "MainThread" or any(stack and stack[0].function == "<module>" for stack in thread.stacks)


def _row(thread: ThreadSamples, is_main: bool, stack: Stack, samples: int, gil_samples: int) -> StackRow:
    innermost = stack[-1]
    return StackRow(
        thread=thread.name or ("MainThread" if is_main else ""),
        thread_id=thread.number,
        is_main=is_main,
        samples=samples,
        gil_samples=gil_samples,
        stack=folded(stack),
        function=innermost.function,
        file=innermost.file,
        line=innermost.line,
        caller=caller_of(stack),
    )
