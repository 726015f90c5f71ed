"""`drumline hook`: lets jobs be recorded that are not started with `drumline run`, when a policy asks for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Let jobs that are not started with `drumline run` be recorded when a policy asks for it.",
)
Python = Annotated[str, typer.Option(metavar="PATH", help="The Python of the environment; default: python3 on PATH.")]
Into = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Its site-packages instead, as in an image that is being built.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@app.command("install")
def install(
    python: Python = "python3",
    into: Into = None,
    spool: Annotated[str, typer.Option(help="Folder for the node agent; default DRUMLINE_SPOOL__ROOT.")] = "",
    as_json: Json = False,
) -> None:
    """Install the hook into an environment: one file, drumline.pth, that each Python of it reads when it starts.

    \b
    drumline hook install --python /opt/train/bin/python
    drumline policy set always --job 'llama*' --for 10m    # or: echo always > SPOOL/policy on one host

    A Python that imports torch has policy `off`: nothing is attached, and at an optimizer step or drumline.step(), four
    times a second at most, it looks for a policy of its job. Then it is recorded. DRUMLINE_COLLECT__POLICY of a site or
    a job counts instead, and `drumline run` too; DRUMLINE_ATTACH=0 leaves a process alone. The job is named by Slurm or
    its script, the run by its launcher.

    CUPTI that comes late has no NVTX ranges of libraries that looked for a profiler before, NCCL's among them: so no
    communicators, collectives or scopes of NVTX. Beside a thread that launches, CUPTI may deliver no kernels at all;
    how often after a late start was not measured. A job that marks no steps and has no optimizer is not recorded.
    NCCL's plugin has collectives all the same where the site sets DRUMLINE_COLLECT__POLICY=auto and the variables that
    --json prints. The variables alone let it record collectives without steps, although the policy is off.

    Exit codes: 0 installed. 2 no such environment, or it may not be written.
    """
    from drumline.producers.site_hook import BadEnvironment, nccl_variables, site_packages, write_hook

    with exit_on_error("hook", BadEnvironment, code=BAD_INPUT):
        path, root = write_hook(into or site_packages(python), spool)
    if as_json:
        echo(json.dumps({"path": str(path), "spool": root, "nccl": nccl_variables(root)}))
        return
    echo(f"installed: {path}; policy off, spool {root}; `drumline hook remove` takes it out")


@app.command("remove")
def remove(python: Python = "python3", into: Into = None, as_json: Json = False) -> None:
    """Remove the hook from an environment. Processes that run keep it until they end.

    Exit codes: 0 removed, or there was none. 2 no such environment, or it may not be written.
    """
    from drumline.producers.site_hook import BadEnvironment, remove_hook, site_packages

    with exit_on_error("hook", BadEnvironment, code=BAD_INPUT):
        removed = remove_hook(into or site_packages(python))
    if as_json:
        echo(json.dumps({"removed": None if removed is None else str(removed)}))
        return
    echo("no hook is installed there" if removed is None else f"removed: {removed}")
