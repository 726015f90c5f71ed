"""`drumline mcp`: a server for agents."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import typer

from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import INTERRUPTED
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


@app.command()
def mcp() -> None:
    """Serve agents over the Model Context Protocol (MCP), on standard input and output, read-only.

    Tools: jobs, explain, list_questions, ask, causes, schema, query. Each answer is JSON of bounded size. Logs go to
    standard error. It ends with its standard input. The local engine is started at the first call if it is down.

    An MCP client starts it: docs/guide/connect.md has a configuration.
    """
    from drumline.views.client.connection import Connection
    from drumline.views.mcp.protocol import build
    from drumline.views.mcp.tools import Tools

    config = settings()
    tools = Tools(lambda: Connection(config, timeout_s=60))

    if sys.stdin.isatty():
        echo("drumline mcp: an MCP client starts this program and writes to it; Ctrl-C ends it", err=True)

    def interrupt(number: int, frame: FrameType | None) -> None:
        tools.close(timeout_s=2.0)
        os._exit(INTERRUPTED)  # the server's thread that waits for standard input cannot be ended

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        build(tools).run("stdio")
    finally:
        tools.close()
