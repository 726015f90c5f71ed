"""Runs a benchmark as a command: progress, result, and exit code."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from confluent_kafka import KafkaException

from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED, INTERRUPTED
from drumline.infra.runtime.terminal import terminal_console
from drumline.lab.bench.render import is_replaceable, show, write
from drumline.lab.bench.result import BenchReport, Progress, machine
from drumline.lab.demo_recording import DEMO_RECORDING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

#: Takes a recording and a function that shows progress.
Measure = Callable[[Path, Progress], BenchReport]
#: Time between two lines of progress in a log; s.
LINES_S = 10.0


def _progress(name: str, errors: Console, status: Status) -> Progress:
    """Return what shows progress: in a terminal one line that changes, elsewhere a line now and then."""
    started = time.monotonic()
    shown_at = 0.0

    def show_progress(text: str) -> None:
        nonlocal shown_at
        status.update(f"bench {name}: {text}")
        if not errors.is_terminal and time.monotonic() - shown_at >= LINES_S:
            shown_at = time.monotonic()
            errors.print(f"bench {name}, {shown_at - started:.0f} s: {text}", markup=False, highlight=False)

    return show_progress


def run(name: str, data: Path | None, measure: Measure, as_json: bool, path: Path | None) -> None:
    """Measure with the recording in `data` (None: the demo's), then print the report as text or JSON.

    With `path`, write it as a page too.

    Raises:
        typer.BadParameter: `path` cannot be replaced.
        typer.Exit: with INTERRUPTED, BAD_INPUT or FAILED.
    """
    if data is None:
        data = DEMO_RECORDING
    if path is not None:
        _require_usable(path)
    errors = terminal_console(stderr=True)
    where = machine()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a private stack must not outlive its benchmark
    try:
        with errors.status(f"bench {name}") as status:
            report = measure(data, _progress(name, errors, status))
    except KeyboardInterrupt:
        errors.print("interrupted; what was started is stopped")
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, OSError) as error:
        errors.print(f"drumline bench: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(BAD_INPUT) from None
    except (RuntimeError, KafkaException) as error:
        errors.print(f"drumline bench: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(FAILED) from None
    report.machine = where
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        show(report, terminal_console())
    if path is not None:
        try:
            write(report, f"drumline bench {name}{_options()}", path)
        except OSError as error:
            errors.print(f"drumline bench: not written: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(FAILED) from None


def _require_usable(path: Path) -> None:
    """Check the path before anything is measured. Raises typer.BadParameter."""
    try:
        if path.exists():
            if not is_replaceable(path):
                raise OSError("a benchmark replaces only pages that a benchmark wrote")
            path.open("a").close()
        elif not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise OSError(f"no folder {path.parent} that can be written to")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be used: {error}", param_hint="--write") from None


def _options() -> str:
    """Return the command's options, without those that choose the output."""
    arguments = list(sys.argv[3:])
    for position in [i for i, argument in enumerate(arguments) if argument == "--write"]:
        arguments[position : position + 2] = ["", ""]
    kept = [text for text in arguments if text and text != "--json" and not text.startswith("--write=")]
    return f" {shlex.join(kept)}" if kept else ""
