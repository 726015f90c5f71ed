"""`drumline run -- COMMAND`: run a command and record all GPU processes below it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.runtime.exit_codes import BAD_INPUT, CANNOT_EXECUTE, NOT_FOUND
from drumline.infra.runtime.terminal import echo
from drumline.schemas.topics import Topic

app = typer.Typer(add_completion=False)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="the command and its arguments, after --", show_default=False)],
    job: Annotated[str, typer.Option(help="job name; default SLURM_JOB_NAME, else the command's script")] = "",
    run_name: Annotated[
        str,
        typer.Option(
            "--run", help="name of this run, equal on all nodes; default: Slurm's or torchrun's id, else a fresh one"
        ),
    ] = "",
    policy: Annotated[
        str,
        typer.Option(
            help="light, auto, counts, always, rollup or off; all but light can be changed while the job runs; "
            "default DRUMLINE_COLLECT__POLICY, else auto"
        ),
    ] = "",
    spool: Annotated[str, typer.Option(help="folder for the node agent; default DRUMLINE_SPOOL__ROOT")] = "",
    label: Annotated[list[str] | None, typer.Option(help=f"KEY=VALUE in {Topic.PROCESS}, any number of times")] = None,
    local: Annotated[
        bool, typer.Option("--local", help="run the whole platform on this machine too, as `drumline up` does")
    ] = False,
    quiet: Annotated[bool, typer.Option(help="print nothing on stderr, also when recording fails")] = False,
) -> None:
    """Run a command and record its GPU processes, without a change to their code.

    \b
    drumline run --job llama -- torchrun --nproc-per-node 8 train.py
    drumline run --local -- torchrun --nproc-per-node 8 train.py
    drumline run --policy always --job llama -- torchrun --nproc-per-node 8 train.py
    drumline run --policy counts -- python -m vllm.entrypoints.openai.api_server ...

    The command takes this process's place: same pid, same signals, same exit code. Python processes that never use CUDA
    are not changed. The records go to the spool; `drumline agent` on the same host publishes them.
    With --local the whole platform starts on this machine first, if it is not up, and the page's address is printed.
    `drumline down` ends it.

    By default (auto) NCCL's collectives and sends are recorded, with the GPU's times, and steps: of a job without NCCL
    steps alone. Where calls follow each other within 3 ms in steps below 100 ms, only 40 steps of every 160 are
    measured (DRUMLINE_RINGS__TIMES=all: all). With --policy counts launches and copies are counted too, by kernel,
    without their times (`drumline sql launch-counts`). Kernels, copies and NVTX ranges with times need --policy always,
    or `always` in <spool>/policy: while the command runs, that file's first line is the policy of all processes of the
    host.
    """
    quiet = quiet or os.environ.get("DRUMLINE_QUIET") == "1"
    if local and spool:
        exit_with("run", BAD_INPUT, "--local publishes what is in DRUMLINE_SPOOL__ROOT: leave --spool out")
    _execute(command, job, run_name, policy, spool, label or [], quiet, local)


def _execute(
    command: list[str], job: str, run_name: str, policy: str, spool: str, label: list[str], quiet: bool, local: bool
) -> None:
    """Warn of what prevents recording, then execute the command. Raises typer.Exit if it cannot be executed."""
    from drumline.infra.config.unknown_variables import find_unknown_variables, for_jobs_only
    from drumline.producers.identity import lacks_shared_run
    from drumline.producers.launcher import BadLaunch, LaunchOptions, environment, misfits, unwritable, without_rings
    from drumline.producers.spool.location import make_rings, spool_root

    if not command[0] or command[0].startswith("-"):
        text = f"{command[0]}: no such option; drumline run --help names all there are" if command[0] else "no command"
        exit_with("run", BAD_INPUT, text)
    try:
        options = LaunchOptions(job, run_name, policy, spool, label, quiet)
        variables = environment(os.environ, command, options)
        for name, text in {} if quiet else misfits(os.environ).items():
            if not (policy and name.endswith("__POLICY")):
                echo(f"drumline run: {name}: {text}", err=True)
        if not quiet and not for_jobs_only(os.environ):
            from drumline.infra.config.settings import Settings  # 0.1 s

            for variable in find_unknown_variables(Settings, os.environ):  # only a warning: the job must run
                echo(f"drumline run: {variable.text}", err=True)
        if lacks_shared_run(variables) and not quiet:
            text = "each rank has its own run id: name it with --run, or put drumline run before the launcher"
            echo(f"drumline run: {text}", err=True)
        if (reason := unwritable(spool_root(variables))) and not quiet:
            echo(f"drumline run: nothing will be recorded: {reason}", err=True)
        with suppress(OSError):  # as the text above states
            make_rings(variables)
        if not reason and not quiet and (reason := without_rings(variables)):
            echo(f"drumline run: NCCL's operations will not be recorded: {reason}", err=True)
        if not local and not quiet and os.isatty(2):  # sys.stderr is None where a daemon closed it
            _offer_platform(spool_root(variables))
        if local:
            _start_platform(variables.get("DRUMLINE_JOB", ""), quiet)
        os.execvpe(command[0], command, variables)
    except BadLaunch as error:
        exit_with("run", BAD_INPUT, str(error))
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE
        exit_with("run", code, f"{command[0]}: {error.strerror}")


def _offer_platform(root: Path) -> None:
    """Tell a person at a terminal that nobody publishes what is recorded, and what would."""
    from drumline.producers.agent.cursor import is_served

    if not is_served(root):
        text = "`drumline agent` does, and `drumline run --local -- ...` runs the whole platform on this machine"
        echo(f"drumline run: nobody publishes what is recorded in {root} now: {text}", err=True)


def _start_platform(job: str, quiet: bool) -> None:
    """Start what `drumline up` starts, and print the job's page. Raises typer.Exit: who asks for it wants to see it."""
    from urllib.parse import quote

    from drumline.infra.config.settings import settings
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack import stack

    if not quiet:
        echo("drumline run: starting Kafka, ClickHouse, worker, sink, agent and page on this machine", err=True)
    with exit_on_error("run", StackError, interrupt_message="interrupted"):
        started = stack.up(settings(), programs=True)
    programs = started.get("programs", {})
    if not programs:
        text = "the settings name a Kafka or a ClickHouse elsewhere: leave --local out, or unset them"
        exit_with("run", BAD_INPUT, text)
    if missing := [name for name, is_ready in programs.items() if not is_ready]:
        echo(f"drumline run: not ready: {', '.join(missing)}; `drumline status` has their logs", err=True)
    if not quiet:
        page = f"{started['page']}/job/{quote(job, safe='')}"
        echo(f"drumline run: {page} shows the job once its first rows are stored", err=True)
