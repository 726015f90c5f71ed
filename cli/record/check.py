"""`drumline check`: are this host's GPUs well?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from drumline.cli.console import exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED
from drumline.infra.runtime.terminal import echo, terminal_console

if TYPE_CHECKING:
    from drumline.infra.config.settings import Settings
    from drumline.producers.health.health_check import HealthCheck

app = typer.Typer(add_completion=False)
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": "dim"}


@app.command()
def check(
    gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs that there should be; default: DRUMLINE_AGENT__GPUS.")
    ] = None,
    load: Annotated[
        bool, typer.Option("--load/--no-load", help="Run a matmul and copies on idle GPUs; 2 s each.")
    ] = True,
    python: Annotated[
        str | None, typer.Option(help="Python with PyTorch, for the loads; default: DRUMLINE_AGENT__PYTHON.")
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Leave the results in the spool, for the agent to publish.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check this host's GPUs: count, NVLink, memory, clocks, PCIe, and how fast idle ones are.

    \b
    readings   GPUs that answer, links that are up, rows that could not be remapped, what NVML wants
               done, highest clock, PCIe lanes
    loads      bf16 matmul, copies from pinned memory, clocks meanwhile; never on a GPU that is in use

    Figures are compared with a table by model (producers/health/model_table.py has the source of each), copies with
    the PCIe link that GPU and host allow. What cannot be checked is shown as skipped, with the reason: without PyTorch
    there are no loads, and a model without figures is compared with nothing.

    Exit codes: 0 nothing failed. 1 something failed. 2 the spool cannot be used (--publish).
    """
    from drumline.producers.health.host_health import host_health
    from drumline.producers.nvml.sampler import pynvml

    config = settings()
    wanted = config.agent.gpus if gpus is None else gpus
    results = list(host_health(pynvml, wanted, (python or config.agent.python) if load else ""))
    failed = sum(result.state == "fail" for result in results)
    if publish:
        try:
            _publish(config, results)
        except OSError as error:
            exit_with("check", BAD_INPUT, f"{config.spool.root}: {error.strerror}")
    if as_json:
        echo(json.dumps({"failed": failed > 0, "checks": [asdict(result) for result in results]}))
    else:
        console = terminal_console(highlight=False)
        for result in results:
            place = "host" if result.gpu_index < 0 else f"GPU {result.gpu_index}"
            state = f"[{_COLOURS[result.state]}]{result.state:<7}[/]"
            console.print(f"{state}  {place:<7}  {result.name:<17}  {escape(result.text)}", soft_wrap=True)
        console.print(f"\n{failed} of {len(results)} checks failed" if failed else "\nnothing failed")
    if failed:
        raise typer.Exit(FAILED)


def _publish(config: Settings, results: Sequence[HealthCheck]) -> None:
    """Write the results into a spool of their own. Raises OSError."""
    import time

    from drumline.producers.batching.process_record import process_record
    from drumline.producers.batching.sample_envelopes import SampleEnvelopes
    from drumline.producers.health.host_health import check_batches
    from drumline.producers.identity import host_identity
    from drumline.producers.spool.location import make_root
    from drumline.producers.spool.writer import SpoolWriter

    now_ns = time.time_ns()
    identity = host_identity("check", now_ns, {}, config.host)
    make_root(config.spool.root)
    spool = SpoolWriter(config.spool.root, process_record({}, identity))
    for key, batch in check_batches(results, SampleEnvelopes(identity.process_id, identity.host), now_ns):
        spool.append_batch(key, batch)
    spool.close()
