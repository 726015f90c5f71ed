"""Mistakes in the options of a command as one line, which names the command and its help."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import typer

from drumline.infra.runtime.exit_codes import FAILED
from drumline.infra.runtime.terminal import echo

#: All errors of arguments: typer brings a click of its own, and exports this one of its classes.
_CLICK_ERROR: type[Any] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")
_NO_COMMAND = re.compile(r"No such command '([^']*)'")
#: Commands of groups, and what people type instead who know them by another name.
_ALIKE = {
    "list": {"ls", "names", "all", "status"},
    "show": {"get", "view", "describe", "info", "list"},
    "set": {"add", "put", "create", "new"},
    "clear": {"delete", "remove", "rm", "reset", "unset", "del"},
    "remove": {"uninstall", "delete", "rm"},
    "apply": {"create", "push", "update", "deploy"},
}


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
            text = _with_commands(error, text)
            echo(f"{typed}: {text[:1].lower()}{text[1:]}; `{typed} -h` explains it", err=True)
        return int(error.exit_code)
    except typer.Abort:
        echo(f"{path}: nothing was done", err=True)
        return FAILED
    return code if isinstance(code, int) else 0


def _with_commands(error: Any, text: str) -> str:
    """Return the text of a mistake; for a command that its group does not have, with what to type instead.

    Another word for a command of the group comes before one that is spelt alike: uninstall is not install.
    """
    unknown = _NO_COMMAND.match(text)
    if unknown is None:
        return text
    commands = getattr(getattr(error.ctx, "command", None), "commands", {})
    alike = [name for name, synonyms in _ALIKE.items() if unknown[1] in synonyms and name in commands]
    if alike:
        return f"{unknown[0]}. Did you mean {alike[0]!r}?"
    return text if "Did you mean" in text else f"{text}; there are: {', '.join(commands)}"
