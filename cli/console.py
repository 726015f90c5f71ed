"""Messages of commands: one line on stderr with an exit code, and text made safe for a terminal; files of results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import typer

from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED, INTERRUPTED
from drumline.infra.runtime.terminal import echo


def exit_with(command: str, code: int, message: str) -> NoReturn:
    """Print `drumline COMMAND: MESSAGE` on stderr, and raise typer.Exit with `code` (infra/runtime/exit_codes.py)."""
    echo(f"drumline {command}: {message}", err=True)
    raise typer.Exit(code) from None


@contextmanager
def exit_on_error(
    command: str,
    *errors: type[Exception],
    code: int = FAILED,
    prefix: str = "",
    hint: bool = True,
    interrupt_message: str = "",
) -> Iterator[None]:
    """End the command with one message instead of a traceback when the block raises one of `errors`.

    Ctrl-C ends it with INTERRUPTED, and prints `interrupt_message` if given. `prefix` comes before the error's text.
    `hint`: name the next command where ClickHouse lacks tables.
    """
    try:
        yield
    except KeyboardInterrupt:
        if interrupt_message:
            echo(f"drumline {command}: {interrupt_message}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except errors as error:
        exit_with(command, code, prefix + (error_text(error) if hint else str(error)))


@contextmanager
def replaced(command: str, output: Path) -> Iterator[Path]:
    """Yield the file to write. It becomes `output` when the block ends: a reader sees the old file or the new one.

    Ends the command with BAD_INPUT where it cannot be written.
    """
    part = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        yield part
        part.replace(output)
    except OSError as error:
        exit_with(command, BAD_INPUT, f"{output}: {error.strerror}")
    finally:
        part.unlink(missing_ok=True)


def error_text(error: Exception) -> str:
    """Return an error's text for a person, with a hint where ClickHouse lacks tables and with the file's name."""
    if getattr(error, "code", 0):  # ClickHouse's
        from drumline.infra.clickhouse.client import with_hint

        return with_hint(error)
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if type(error).__name__ == "KafkaException":
        from drumline.infra.config.settings import settings

        return f"Kafka at {settings().bootstrap} rejects the request: {error.args[0].str()}"
    return str(error)
