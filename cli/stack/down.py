"""`drumline down`."""

from __future__ import annotations

import typer

from drumline.infra.config.settings import settings
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


@app.command()
def down() -> None:
    """Stop the local stack cleanly; data stays in the state directory. It succeeds when nothing runs.

    Also finds and stops a broker or an engine whose supervisor was killed.
    """
    from drumline.cli.console import exit_on_error
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack import stack

    with exit_on_error("down", StackError, interrupt_message="interrupted"):
        stopped = stack.down(settings())
    echo("stopped" if stopped else "nothing was running")
