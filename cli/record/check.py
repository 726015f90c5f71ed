"""`drumline check`: are this host's GPUs well, and with --pairs the paths between hosts?"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from drumline.cli.console import exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED, OK, UNDECIDED
from drumline.infra.runtime.terminal import echo, terminal_console

if TYPE_CHECKING:
    from drumline.infra.config.settings import Settings
    from drumline.producers.health.health_check import HealthCheck
    from drumline.producers.pairs.evaluation import PairFinding
    from drumline.producers.pairs.participant import CheckResult

app = typer.Typer(add_completion=False)
#: Variable with what the hosts of `--pairs` share.
SECRET = "DRUMLINE_PAIRS_SECRET"
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
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Measure the paths between hosts instead; start it on each of them.")
    ] = False,
    hosts: Annotated[
        str, typer.Option(help="With --pairs: names, a,b,c, alike on each; default: Slurm's, else torchrun's.")
    ] = "",
    port: Annotated[int, typer.Option(min=1, max=65535, help="With --pairs: TCP port of the first host.")] = 29_541,
    wait: Annotated[
        float, typer.Option(min=1, max=600, help="With --pairs: seconds that hosts are waited for.")
    ] = 30.0,
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

    --pairs measures TCP between each two hosts, and uses no GPU: rate each way and round trip, 0.3 s and 256 MiB at
    most, disjoint pairs at once. All pairs of up to 32 hosts; of more, log2(n) rounds, other ones each time: they show
    a slow host, and of n - 1 links of a host log2(n). Up to 12 slow pairs are measured again, one at a time; only what
    was slow twice fails. DRUMLINE_PAIRS_SECRET: 16 characters or more, alike on all hosts.

    Exit codes: 0 nothing failed. 1 something failed; --pairs: this host is slow. 2 the spool cannot be used
    (--publish), or wrong hosts, port or secret. 10 --pairs: undecided, as a host did not come, a pair was not measured,
    or this host is an end of a slow link or was slow once.
    """
    if pairs:
        if publish or gpus is not None:
            exit_with("check", BAD_INPUT, "--publish and --gpus are not for --pairs; check the GPUs without --pairs")
        _check_pairs([name for part in hosts.split(",") if (name := part.strip())], port, wait, as_json)
        return
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


def _check_pairs(hosts: Sequence[str], port: int, wait_s: float, as_json: bool) -> None:
    from drumline.producers.identity import host_name, is_first_on_host
    from drumline.producers.pairs.channel import LEAST_SECRET
    from drumline.producers.pairs.participant import KeyRejected, NoResult, check_pairs, is_local
    from drumline.producers.pairs.roster import find_roster

    if not is_first_on_host(os.environ):
        return  # one process of a host measures
    secret, name = os.environ.get(SECRET, ""), host_name(settings().host)
    if len(secret) < LEAST_SECRET:
        exit_with("check", BAD_INPUT, f"{SECRET}: set the same {LEAST_SECRET} characters or more on all hosts")
    try:
        roster = find_roster(os.environ, hosts, name, is_local)
    except ValueError as error:
        exit_with("check", BAD_INPUT, str(error))
    try:
        result = check_pairs(roster, secret.encode(), name, port, wait_s)
    except KeyRejected as error:
        exit_with("check", BAD_INPUT, f"{error}; {SECRET} and --hosts have to be alike, within one job")
    except NoResult as error:
        exit_with("check", UNDECIDED, str(error))
    except OSError as error:
        exit_with("check", BAD_INPUT, f"{roster.coordinator} port {port}: {error.strerror}; see --hosts and --port")
    code = _pairs_code(result.findings, roster.index)
    _print_pairs(result, code == FAILED, as_json)
    if code:
        raise typer.Exit(code)


def _pairs_code(findings: Sequence[PairFinding], host: int) -> int:
    """Return the exit code of a host: FAILED is for the one that is at fault, as it may be taken out of service."""
    touching = [finding for finding in findings if host in finding.hosts]
    if any(finding.fails and finding.kind == "slow_host" for finding in touching):
        return FAILED
    is_open = any(finding.kind in ("missing", "unmeasured") for finding in findings)
    return UNDECIDED if touching or is_open else OK


def _print_pairs(result: CheckResult, is_named: bool, as_json: bool) -> None:
    from drumline.producers.pairs.evaluation import mbytes, norm_of

    if as_json:
        named = [{**asdict(of), "hosts": [result.names[host] for host in of.hosts]} for of in result.findings]
        pairs = [
            {**asdict(pair), "first": result.names[pair.first], "second": result.names[pair.second]}
            for pair in result.pairs
        ]
        echo(json.dumps({**asdict(result), "failed": is_named, "findings": named, "pairs": pairs}))
        return
    console = terminal_console(highlight=False)
    for finding in result.findings:
        state = "fail" if finding.fails else "warn"
        line = f"[{_COLOURS[state]}]{state:<7}[/]  {finding.kind:<10}  {escape(finding.text)}"
        console.print(line, soft_wrap=True)
    count, norm = len(result.names), norm_of(result.pairs)
    console.print(
        f"{len(result.pairs)} of {count * (count - 1) // 2} pairs of {count} hosts in {result.rounds} rounds, "
        f"{result.seconds:.1f} s; fast ones: {mbytes(norm.rate)} MB/s, round trip {norm.trip_s * 1e6:.0f} us"
        f"{'' if result.findings else '; nothing failed'}",
        soft_wrap=True,
    )


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
