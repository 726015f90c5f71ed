"""The way of text to a terminal. Stored names may hold escape sequences, so commands write nothing by another way."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

#: What layout needs of the control characters.
LAYOUT = "\n\t"


def escape_controls(text: str, keep: str = "") -> str:
    r"""Return `text` with control and invisible characters escaped ("\x1b"): C0, C1, marks of writing direction."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def echo(text: object = "", *, err: bool = False, flush: bool = False) -> None:
    """Print a line on standard output, or on standard error, whose loss (a full disk, a closed pipe) raises nothing."""
    with suppress(OSError) if err else nullcontext():
        print(escape_controls(str(text), LAYOUT), file=sys.stderr if err else sys.stdout, flush=flush)


def write_stream(parts: Iterable[bytes]) -> None:
    """Write the bytes of a result on standard output: as they are to a file or a pipe, escaped on a terminal."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for part in parts:
        if sys.stdout.isatty():
            sys.stdout.write(escape_controls(decoder.decode(part), LAYOUT))
        else:
            sys.stdout.buffer.write(part)
    sys.stdout.write(escape_controls(decoder.decode(b"", final=True), LAYOUT))
    sys.stdout.flush()


def terminal_console(**options: Any) -> Console:
    """Return rich's console (`options` are its), which escapes what views did not.

    Views escape cells themselves, so that columns are wide enough. No table is cut (tables.py).
    """
    from rich.console import Console
    from rich.segment import Segment
    from rich.table import Table

    from drumline.infra.runtime.tables import arranged

    class EscapingConsole(Console):
        def print(self, *objects: Any, **kwargs: Any) -> None:
            shown = (arranged(item, self) if isinstance(item, Table) else item for item in objects)
            if not self.is_terminal:
                kwargs.setdefault("soft_wrap", True)  # a pipe gets whole lines
            super().print(*shown, **kwargs)

        def render(self, *args: Any, **kwargs: Any) -> Any:
            for segment in super().render(*args, **kwargs):
                text = segment.text if segment.control else escape_controls(segment.text, LAYOUT)
                yield Segment(text, segment.style, segment.control)

    return EscapingConsole(**options)
