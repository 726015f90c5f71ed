"""`drumline doctor`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import FAILED
from drumline.infra.runtime.terminal import echo, terminal_console

app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    python: Annotated[str, typer.Option(help="the Python that jobs on this host run with")] = "python3",
    gpu: Annotated[bool, typer.Option("--gpu/--no-gpu", help="this host runs GPU jobs")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Check the requirements of recording and publishing on this host, and print what to fix.

    \b
    GPU        driver, NVML, CUPTI as the jobs' PyTorch loads it, reading between processes, the compiled callbacks
    NCCL       drumline's plugin and the user's, NCCL's interface, the rings of running processes
    spool      write permission of jobs, backlog of the agent, validity of the policy
    kept rows  the folder of policy rollup, where DRUMLINE_AGENT__KEPT_FOLDER names one: rights and room
    Kafka      connection, topics

    Whether the GPUs themselves are well: `drumline check`. On a host without GPUs: --no-gpu. Exit code 0 when nothing
    failed, 1 when something did. Nothing is changed.
    """
    from drumline.producers.doctor import checks, kept_checks, nccl_checks
    from drumline.producers.doctor import spool_checks as checks_spool
    from drumline.producers.identity import host_name
    from drumline.producers.spool.quota import PROCESSES

    chosen = settings()
    results = []
    if gpu:
        results += checks.host_checks()
        results += checks.job_checks(python, os.environ)
        results += checks.environment_checks(os.environ)
        results.append(checks.safely("NCCL plugin", nccl_checks.plugin))
        results += nccl_checks.users_plugin(os.environ)
        results.append(checks.safely("rings", lambda: nccl_checks.rings(chosen.rings_folder)))
    together = PROCESSES * (chosen.spool.max_mb << 20)
    results.append(checks.safely("spool", lambda: checks_spool.spool(chosen.spool.root, together)))
    results += checks_spool.policy(chosen.spool.root)
    if (folder := chosen.agent.kept_folder) is not None:
        quota, host = chosen.agent.kept_mb << 20, host_name(chosen.host)
        results.append(
            checks.safely("kept rows", lambda: kept_checks.kept_rows(folder, host, quota, chosen.spool.root))
        )
    results.append(checks.safely("Kafka", lambda: checks.Check("Kafka", *kafka())))
    failed = sum(check.state == checks.FAIL for check in results)
    if as_json:
        echo(json.dumps({"failed": failed > 0, "checks": [asdict(check) for check in results]}))
    else:
        console = terminal_console(highlight=False)
        colour = {checks.OK: "green", checks.WARN: "yellow", checks.FAIL: "red"}
        for check in results:
            state = f"[{colour[check.state]}]{check.state:<4}[/]"
            console.print(f"{state}  {check.name:<16}  {escape(check.text)}", soft_wrap=True)
            if check.fix:
                console.print(f"{'':<24}to do: {escape(check.fix)}", soft_wrap=True)
        console.print(f"\n{failed} of {len(results)} checks failed" if failed else "\nnothing failed")
    if failed:
        raise typer.Exit(FAILED)


def kafka() -> tuple[str, str, str]:
    """Return state, finding and fix."""
    from drumline.infra.kafka.topic_admin import TopicsAdmin, declared_topics, plan

    chosen = settings()
    try:
        topics = declared_topics(chosen)
        steps = plan(topics, TopicsAdmin(chosen).existing(topic.name for topic in topics))
    except (OSError, RuntimeError) as error:
        return "fail", str(error), "DRUMLINE_KAFKA__... name the broker and how to get in (drumline config)"
    wrong = [step for step in steps if step.action != "ok"]
    if wrong:
        return "fail", f"{chosen.bootstrap}: {len(wrong)} topics are missing or differ", "drumline topics apply"
    return "ok", f"{chosen.bootstrap}: all {len(topics)} topics are there", ""
