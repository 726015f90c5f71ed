"""`drumline serve`: the web page."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    address: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; 0 = any free one. Default DRUMLINE_SERVE__PORT, 18080.")
    ] = None,
) -> None:
    """Serve the web page: jobs, ranks with cause and remedy, bad steps across ranks, costs, the named questions.

    It reads ClickHouse as the read-only user and loads nothing from the internet. Other addresses than this machine's
    need a token (DRUMLINE_SERVE__TOKEN_FILE); DRUMLINE_SERVE__CERTIFICATE and DRUMLINE_SERVE__KEY make it https.
    Ctrl-C ends it.

    Exit codes: 0 ended by SIGTERM. 2 the address cannot be used, or would be open to others. 130 Ctrl-C.
    """
    from drumline.infra.runtime.signals import ShutdownSignal
    from drumline.infra.telemetry.insecure import is_loopback
    from drumline.views.serve.access import AccessNotSafe
    from drumline.views.serve.web_server import CannotServe, listen, page_address, server

    config = settings()
    config.serve.address = address
    config.serve.port = config.serve.port if port is None else port
    with exit_on_error("serve", AccessNotSafe, CannotServe, code=BAD_INPUT):
        listener = listen(config.serve)
    echo(f"open {page_address(config.serve, listener.getsockname()[1])} in a browser; Ctrl-C ends it", flush=True)
    if config.serve.certificate is None and not is_loopback(config.serve.address):
        echo("drumline serve: http shows the token to the network; DRUMLINE_SERVE__CERTIFICATE encrypts", err=True)
    with exit_on_error("serve", ModuleNotFoundError, code=BAD_INPUT):
        page = server(config)
    stopping = ShutdownSignal()
    page.run(sockets=[listener])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(stopping.code)  # a request that waits for ClickHouse must not delay the exit
