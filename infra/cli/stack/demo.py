"""`drumline demo`: a recorded job through the whole platform."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from drumline.infra.config.settings import settings

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="leave Kafka and ClickHouse up afterwards")] = False,
) -> None:
    """Run a recorded 4-GPU job through Kafka, Faust and ClickHouse on this machine, and check what comes out.

    The recording holds four injected faults. The demo starts the local stack, a stream worker and the sinks, replays
    the recording as fast as possible, waits until all is stored, audits it and prints the verdicts beside what was
    injected. Everything stops again unless --keep is given; what is stored stays, and `drumline sql` still answers.
    Its stream worker is an app of its own and reads only what the demo publishes; no other may run here meanwhile.

    Exit code: 0 all counts equal and every injected straggler found, 1 not, 130 interrupted.
    """
    from drumline.infra.demo.run import run_demo
    from drumline.infra.demo.worker import DemoFailed

    console = Console()
    try:
        fine = run_demo(settings(), console, keep)
    except DemoFailed as error:
        console.print(f"drumline demo: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        console.print("interrupted; the next run starts clean")
        raise typer.Exit(130) from None
    raise typer.Exit(0 if fine else 1)
