"""Write docs/reference/cli.md from the typer apps: each command with its usage, arguments and options."""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main
from page import NOTE, REFERENCE, sentence, table, write

from drumline.cli.app import GROUPS, MODULES
from drumline.cli.job_argument import with_job_argument

PAGE = REFERENCE / "cli.md"
_KINDS: dict[Any, str] = {str: "text", int: "number", float: "number", Path: "path"}
HEAD = f"""{NOTE.format(name="cli_page")}# Commands

Which commands does `drumline` have, and which options do they take? `drumline COMMAND --help` prints the same.
[Exit codes](exit-codes.md) lists what they return; [settings](settings.md) are environment variables.
"""


def page() -> str:
    """Return the page's text. Raises ValueError where an option has no help text."""
    parts = [HEAD]
    for heading, _, commands in GROUPS:
        parts.append(f"## {heading}\n")
        for name in commands:
            app = importlib.import_module(f"drumline.cli.{MODULES[name]}").app
            parts.append(_command(with_job_argument(typer.main.get_command(app)), f"drumline {name}", "###"))
    return "\n".join(parts)


def _command(command: Any, path: str, level: str) -> str:
    usage = " ".join([path, "[OPTIONS]", *(_placeholder(p) for p in command.params if not _is_option(p))])
    below = getattr(command, "commands", {})
    parts = [f"{level} {path}\n", _prose(command.help or ""), f"```\n{usage}{' COMMAND' if below else ''}\n```\n"]
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        if not parameter.help:
            raise ValueError(f"{path}: {parameter.name} has no help text")
        rows.append((_names(parameter), sentence(parameter.help), _default(parameter)))
    if rows:
        parts.append(table(("argument or option", "meaning", "default"), rows))
    parts += [_command(below[name], f"{path} {name}", level + "#") for name in below]
    return "\n".join(parts)


def _prose(text: str) -> str:
    r"""Return help text as Markdown: paragraphs, and blocks that begin with \b as code."""
    blocks = []
    for block in inspect.cleandoc(text).split("\n\n"):
        if block.startswith("\b"):
            blocks.append("```\n" + textwrap.dedent(block.removeprefix("\b").strip("\n")) + "\n```")
        else:
            blocks.append(re.sub(r"(<\w+>[/\w]*)", r"`\1`", " ".join(block.split())))
    return "\n\n".join(blocks) + "\n"


def _is_option(parameter: Any) -> bool:
    return str(parameter.opts[0]).startswith("-")


def _placeholder(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    name = parameter.metavar or (parameter.name if not _is_option(parameter) else _KINDS.get(kind, kind.__name__))
    text = name.upper() if not parameter.metavar else name
    return text if _is_option(parameter) or parameter.required else f"[{text}]"


def _names(parameter: Any) -> str:
    if not _is_option(parameter):
        return f"`{_placeholder(parameter)}`"
    names = " / ".join(", ".join(opts) for opts in (parameter.opts, parameter.secondary_opts) if opts)
    return f"`{names}`" if parameter.is_flag else f"`{names} {_placeholder(parameter)}`"


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value == "" or value is False or value == []:
        return ""
    if value is True:
        return f"`{parameter.opts[0]}`"
    return f"`{getattr(value, 'value', value)}`"


if __name__ == "__main__":
    write(PAGE, page())
