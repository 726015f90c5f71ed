"""`drumline completion`: the script that completes commands in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import click
import typer
from click.shell_completion import get_completion_class

from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


class Shell(StrEnum):
    """Shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="Your shell.")]) -> None:
    """Print the script that completes commands, options, questions, topics and limits in your shell.

    \b
    bash   drumline completion bash > ~/.local/share/bash-completion/completions/drumline
    zsh    drumline completion zsh > "${fpath[1]}/_drumline"
    fish   drumline completion fish > ~/.config/fish/completions/drumline.fish
    """
    kind = get_completion_class(shell.value)
    if kind is not None:
        echo(kind(click.Command("drumline"), {}, "drumline", "_DRUMLINE_COMPLETE").source())
