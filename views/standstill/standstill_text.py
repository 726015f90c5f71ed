"""The answer on a standing job as text for a person. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from drumline.infra.guidance.entry import cause_text
from drumline.producers.foreign.dumps.dumped_calls import StackFrame
from drumline.views.standstill.answer import AwaitedOperation, Stack, StandstillAnswer
from drumline.views.standstill.sentences import ranks_text

#: Lines of one kind, and frames of a stack.
MOST_LINES, MOST_FRAMES = 8, 6
#: Files that the program's author has not written.
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3|^<|/torch/(distributed|nn|_ops|autograd)")


def lines(answer: StandstillAnswer) -> list[str]:
    """Return the answer's lines, the sentence first."""
    text = [
        answer.sentence,
        f"  reason    {cause_text(answer.reason)}: {answer.meaning}",
        f"  check     {answer.check}",
        f"  do        {answer.act}",
        f"  escalate  to {answer.escalate}",
    ]
    if answer.operation is not None:
        text.append(f"  operation {_operation(answer.operation)}")
    text += _listed("then", answer.chain)
    for stack in answer.stacks[:MOST_LINES]:
        text += _stack(stack)
    if len(answer.stacks) > MOST_LINES:
        text.append(f"  stack     {len(answer.stacks) - MOST_LINES} more; --json has them")
    by_reason: dict[str, list[int]] = defaultdict(list)
    for rank, reason in answer.absent.items():
        by_reason[reason].append(rank)
    text += _listed("unknown", [f"{ranks_text(ranks)}: {reason}" for reason, ranks in by_reason.items()])
    text += _listed("note", answer.notes)
    text += _listed("unread", answer.unreadable)
    return text


def _listed(name: str, texts: Sequence[str]) -> Iterator[str]:
    for text in texts[:MOST_LINES]:
        yield f"  {name:<9} {text}"
    if len(texts) > MOST_LINES:
        yield f"  {name:<9} {len(texts) - MOST_LINES} more; --json has them"


def _operation(operation: AwaitedOperation) -> str:
    parts = [f"{operation.operation}{f' {operation.number}' if operation.number else ''} of {operation.process_group}"]
    of = f" of {operation.ranks}" if operation.ranks else ""
    parts.append(f"{len(operation.waiting)}{of} {'ranks wait' if len(operation.waiting) > 1 or of else 'rank waits'}")
    if operation.sizes_in or operation.sizes_out:
        parts.append(f"{_shapes(operation.sizes_in)} -> {_shapes(operation.sizes_out)} {', '.join(operation.types)}")
    if operation.since_ns:
        seconds = operation.since_ns // 1_000_000_000
        limit = f", and fails after {operation.timeout_ms / 1000:,.0f} s" if operation.timeout_ms else ""
        if seconds < 1 << 37:  # what datetime can show
            parts.append(f"waits since {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC{limit}")
    return "; ".join(parts)


def _shapes(sizes: Sequence[Sequence[int]]) -> str:
    """Return shapes as text: "[8, 1024], [4]"; of many the first."""
    shown = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in sizes[:4])
    return f"{shown}{f' and {len(sizes) - 4} more' if len(sizes) > 4 else ''}" or "nothing"


def _stack(stack: Stack) -> Iterator[str]:
    yield f"  stack     {ranks_text(stack.ranks)}{', named' * stack.named}, in {stack.operation}:"
    for frame in shown_frames(stack.frames):
        yield f"              {frame.function} at {frame.file}:{frame.line}"


def shown_frames(frames: Sequence[StackFrame]) -> list[StackFrame]:
    """Return the frames that show most: the program's, innermost first; without any, the innermost."""
    return [frame for frame in frames if not _LIBRARY.search(frame.file)][:MOST_FRAMES] or [*frames[:MOST_FRAMES]]
