"""Mistakes in the options of a command as one line, which names the command and its help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from drumline.infra.runtime.exit_codes import FAILED
from drumline.infra.runtime.terminal import echo

#: All errors of arguments: typer brings a click of its own, and exports this one of its classes.
_CLICK_ERROR: type[Any] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def run(command: Any, arguments: Sequence[str], path: str) -> int:
    """Run typer's `command` with the arguments that were typed after `path`; return its exit code.

    A mistake in them is one line on stderr. Raises what the command raises, but not typer's exits.
    """
    try:
        code = command.main(args=arguments, prog_name=path, standalone_mode=False)
    except _CLICK_ERROR as error:
        if type(error).__name__ != "NoArgsIsHelpError":  # the help is printed already
            typed = error.ctx.command_path if getattr(error, "ctx", None) else path
            text = " ".join(error.format_message().split()).rstrip(".")
            echo(f"{typed}: {text[:1].lower()}{text[1:]}; `{typed} -h` explains it", err=True)
        return int(error.exit_code)
    except typer.Abort:
        echo(f"{path}: nothing was done", err=True)
        return FAILED
    return code if isinstance(code, int) else 0
