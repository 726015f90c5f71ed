"""How a command ends when it cannot do its work, and how it shows words that anybody may have written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from drumline.infra.config.state_dir import StackError


@contextmanager
def explained(code: int = 1) -> Iterator[None]:
    """Print a StackError as one plain message on stderr and exit with `code`; Ctrl-C exits with 130."""
    try:
        yield
    except StackError as error:
        print(f"drumline: {error}", file=sys.stderr)
        sys.exit(code)
    except KeyboardInterrupt:
        print("drumline: interrupted", file=sys.stderr)
        sys.exit(130)


def plain(text: str) -> str:
    """`text` with what would steer a terminal as an escape: "\\x1b"."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
