"""Keys of `drumline top`: what each does to the view (pure), and how they are read from a terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

#: Orders of the ranks, in the order of the key `s`.
ORDERS = ("lateness", "rank", "step", "host")
HELP = (
    "j, k or arrows  select a job      enter  all ranks of it, or back",
    "s  order of the ranks: lateness, rank, step, host      ?  this text      q  end",
)
#: Bytes that a terminal sends -> name of the key.
_NAMES = {"\x1b[A": "up", "\x1bOA": "up", "k": "up", "\x1b[B": "down", "\x1bOB": "down", "j": "down", "\r": "enter",
          "\n": "enter", "\x1b": "escape"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ViewState:
    """State of the view that keys change. `selected`: a job's name, "" = the newest. `is_focused`: its ranks alone.

    web_page: address of `drumline serve`, for links.
    """

    selected: str = ""
    order: str = ORDERS[0]
    is_focused: bool = False
    has_help: bool = False
    web_page: str = ""


def press(state: ViewState, key: str, jobs: Sequence[str]) -> ViewState | None:
    """Return the state after a key, None for the end. `jobs`: the names that are shown, from top to bottom."""
    if key in ("q", "Q"):
        return None
    if key == "?":
        return replace(state, has_help=not state.has_help)
    if key == "s":
        return replace(state, order=ORDERS[(ORDERS.index(state.order) + 1) % len(ORDERS)])
    if key == "enter" and jobs:
        return replace(state, is_focused=not state.is_focused, selected=state.selected or jobs[0])
    if key == "escape":
        return replace(state, is_focused=False, has_help=False)
    if key in ("up", "down") and jobs and not state.is_focused:
        at = jobs.index(state.selected) if state.selected in jobs else 0
        return replace(state, selected=jobs[min(max(at + (1 if key == "down" else -1), 0), len(jobs) - 1)])
    return state


@contextmanager
def key_reader() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits at most so many seconds for a key and returns its name, "" for none.

    The terminal neither echoes nor waits for Enter inside the block; Ctrl-C works. Without a terminal there are no
    keys.
    """
    if not sys.stdin.isatty():
        yield _no_key
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(timeout_s: float) -> str:
        if not select.select([descriptor], [], [], timeout_s)[0]:
            return ""
        text = os.read(descriptor, 32).decode(errors="replace")
        if not text:  # the terminal has hung up
            return "q"
        return _NAMES.get(text, text if len(text) == 1 else _NAMES.get(text[:3], text[0]))

    try:
        tty.setcbreak(descriptor)
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_key(timeout_s: float) -> str:
    time.sleep(timeout_s)
    return ""
