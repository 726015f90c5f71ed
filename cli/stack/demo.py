"""`drumline demo`: a recorded job through the whole platform."""

from __future__ import annotations

from typing import Annotated

import typer

from drumline.infra.config.settings import settings
from drumline.infra.runtime.terminal import terminal_console

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="leave Kafka, ClickHouse and the web page up afterwards")
    ] = False,
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="play the job in its own time: watch verdicts arrive in the web page; all stays up, as with --keep",
        ),
    ] = False,
) -> None:
    """Run a recorded 4-GPU job through Kafka, Faust and ClickHouse on this machine, and check what comes out.

    The recording holds four injected faults. The demo starts the local stack, a stream worker and the sinks, replays
    the recording as fast as possible, waits until all is stored, audits it and prints the verdicts beside what was
    injected. Everything stops again; what is stored stays, and `drumline sql` still answers. --keep leaves the stack
    up, and the web page, whose address is printed; `drumline down` ends both. --live starts the page first. The stream
    worker has an app id of its own; no other worker may run on this machine meanwhile.

    Exit code: 0 all counts equal and every injected straggler found, 1 not, 130 interrupted.
    """
    from drumline.cli.console import exit_on_error
    from drumline.infra.runtime.exit_codes import FAILED, OK
    from drumline.lab.demo.run import run_demo
    from drumline.lab.demo.worker import DemoFailed

    with exit_on_error("demo", DemoFailed, interrupt_message="interrupted; the next run starts clean"):
        is_right = run_demo(settings(), terminal_console(), keep, live)
    raise typer.Exit(OK if is_right else FAILED)
