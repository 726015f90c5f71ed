"""`drumline config`: the settings in force."""

from __future__ import annotations

import json

import typer

from drumline.infra.config.settings import settings
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


@app.command()
def config() -> None:
    """Print the settings in force as JSON, without secrets.

    Set one with an environment variable DRUMLINE_..., for instance DRUMLINE_KAFKA__BOOTSTRAP=host:9092.
    """
    echo(json.dumps(settings().model_dump(mode="json"), indent=2))
