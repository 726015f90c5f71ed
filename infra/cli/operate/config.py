"""`drumline config`: the settings in force."""

from __future__ import annotations

import typer

from drumline.infra.config.settings import settings

app = typer.Typer(add_completion=False)


@app.command()
def config() -> None:
    """Print the settings in force as JSON, without secrets.

    Set one with an environment variable DRUMLINE_..., for instance DRUMLINE_KAFKA__BOOTSTRAP=host:9092.
    """
    typer.echo(settings().model_dump_json(indent=2))
