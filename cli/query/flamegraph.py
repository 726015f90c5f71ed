"""`drumline flamegraph`: GPU time by Python stack, for speedscope."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with, replaced
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls

app = typer.Typer(add_completion=False)
#: Most stacks of a file.
MOST_STACKS = 100_000


@app.command()
def flamegraph(
    job: Annotated[str, typer.Option(help="The job's name; `drumline sql jobs` lists them.")],
    run: Annotated[str, typer.Option(help="A run of it; default: the newest.")] = "",
    rank: Annotated[int, typer.Option(min=-1, help="This rank; -1: all together.")] = -1,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file to write; *.pb.gz: a profile for pprof.")
    ] = Path("gpu.speedscope.json"),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Write GPU time by Python stack as a flame graph; https://www.speedscope.app reads it in the browser.

    A file named *.pb.gz is a profile for pprof: `go tool pprof -http=: gpu.pb.gz`, and what else reads it.

    Widths are the GPU time of the kernels that were launched while the stack was the last sampled one, in deep windows
    with launches and stacks: `drumline capture --job J --with kernels,launches,stacks`. Kernels without a launch or a
    sample have a frame of their own. `drumline sql hot-lines` has the same by line, function and scope.
    The local engine is started if it is down.

    Exit codes: 0 written. 1 ClickHouse does not answer. 2 no such job or run, no launches of it, or the file cannot be
    written.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows
    from drumline.infra.clickhouse.queries import query as named_query
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.views.report.data import NoSuchRun, find_run
    from drumline.views.report.flame_graph import speedscope
    from drumline.views.report.pprof import pprof

    config, question = settings(), named_query("hot-lines")
    with (
        exit_on_error("flamegraph", NoSuchRun, code=BAD_INPUT),
        exit_on_error("flamegraph", ClickHouseFailed, StackError),
        ensure_engine(config),
    ):
        client = connect(config, reader=True, database=config.clickhouse.database)
        run = str(find_run(lambda sql, values: rows(client, sql, values), job, run)[0]["run"])
        given = {"job": job, "run": run, "rank": str(rank), "by": "stack", "limit": str(MOST_STACKS)}
        stacks = rows(client, question.sql, question.values(given))
    if not stacks:
        exit_with(
            "flamegraph", BAD_INPUT,
            f"no launches of run {escape_controls(run)} are stored: `drumline capture --with kernels,launches,stacks` "
            "records them",
        )  # fmt: skip
    name, is_pprof = f"{job}, run {run}" + (f", rank {rank}" if rank >= 0 else ""), output.name.endswith(".pb.gz")
    with replaced("flamegraph", output) as part:
        part.write_bytes(pprof(stacks) if is_pprof else speedscope(stacks, name).encode())
    gpu_s = sum(float(row["gpu_s"]) for row in stacks)
    if as_json:
        echo(json.dumps({"path": str(output.resolve()), "job": job, "run": run, "stacks": len(stacks), "gpu_s": gpu_s}))
        return
    reader = "read it with `go tool pprof`" if is_pprof else "open it at https://www.speedscope.app"
    echo(f"{len(stacks)} stacks, {gpu_s:,.3f} s of GPU time: {output.resolve()}; {reader}")
