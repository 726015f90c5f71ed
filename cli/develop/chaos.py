"""`drumline chaos`: disturb programs under load, and prove that nothing was lost."""

from __future__ import annotations

import json
import math
import secrets
import signal
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from drumline.infra.runtime.exit_codes import FAILED, INTERRUPTED, OK
from drumline.infra.runtime.terminal import echo, terminal_console

app = typer.Typer(add_completion=False)
#: Length of a chaos run without --minutes and --kills.
MINUTES = 5.0


@app.command()
def chaos(
    minutes: Annotated[
        float | None,
        typer.Option(min=0.1, help="no further round begins after that; 5, or no bound with --kills or --rounds"),
    ] = None,
    kill: Annotated[
        str,
        typer.Option(
            metavar="A,B+C",
            help="sink, second-sink, engine, worker, second (unnamed worker), broker, agent; of three brokers also "
            "broker-leader, two-brokers, rolling; logs (a disk); A+B: both at once",
        ),
    ] = "sink,sink+engine,worker,broker",
    signals: Annotated[
        str,
        typer.Option(
            "--signal",
            metavar="kill|stop|both|full|step|rejoin|all",
            help="stop: halts of 5 to 30 s (SIGSTOP, SIGCONT); both: kill, stop; full: disks; step: clocks; rejoin: "
            "rebalances",
        ),
    ] = "kill",
    brokers: Annotated[int, typer.Option(min=1, max=3, help="3: topics have three replicas; each is a target")] = 1,
    kills: Annotated[int, typer.Option(min=0, help="end after that many; 0: when the time is over")] = 0,
    rounds: Annotated[int, typer.Option(min=0, help="end after that many; in place of --kills")] = 0,
    hostile: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="no kills: have Kafka take that many hostile records beside an innocent job"
        ),
    ] = 0,
    seed: Annotated[int | None, typer.Option(help="of kills and hostile records; default: a new one, printed")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="a recorded job; default: the demo's")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="write the result there, as JSON")] = None,
) -> None:
    """Disturb programs at random moments under load and prove, round by round, that nothing was lost or doubled.

    Runs on a private stack. Replays of a recorded job keep a worker and a sink busy; they are suspended while those lag
    far behind. With agent among the targets, replays go through spools and `drumline agent`. A round is eight kills or
    other disturbances. Then everything is drained, `drumline audit` runs, stored rows are counted against published
    rows, and every window and verdict is compared with an undisturbed reference run. Each is reported with the work in
    flight, and the time until recovery.

    Of three brokers, broker-leader is the one with the sinks' commits, two-brokers any two at once, and rolling a clean
    restart of each in turn, once all replicas are in sync.

    With disturbances that last (all but kill) a second worker and a second sink run, which take over from one that is
    halted longer than its session. Without kills a round has each target once, in random order. Most overlap with the
    next ones; never are two brokers away at once. The last replay ends during the last one.

    With full the disk of broker, engine or logs (of all programs) has no free block for 3 to 15 s. Each is a tmpfs,
    which root only can mount. With step the clock of a program is 2 s to an hour ahead or behind for a while. A C
    compiler builds the library for it. With rejoin a worker or sink ends cleanly every 1 to 6 s and comes back, for 5
    to 30 s, so that its group rebalances all the time. With all each target has every signal that it can have.

    With --hostile nothing is killed. A job is replayed at its recorded speed, three times in turn alone and beside
    records that are generated from the Avro schemas: extremes in every field, wrong lengths, garbage, foreign process
    ids. Every record must be in the ledger or a dead letter, no program may end, the job's results must be equal, and
    the p95 of its verdicts' delay at most twice as long.

    The chaos run ends with the first round that is not clean, and keeps that stack's state. Where --minutes ends it
    before --kills or --rounds were made, it reports how many are missing.

    --write saves the result after every kill, so a chaos run that is killed itself leaves one.

    Exit code: 0 all clean, 1 not, 2 bad input, 130 interrupted.
    """
    if hostile:
        _run_hostile(hostile, seed, data, as_json, write)
    _run(minutes, kill, signals, brokers, kills, rounds, seed, data, as_json, write)


def _run_hostile(count: int, seed: int | None, data: Path | None, as_json: bool, write: Path | None) -> NoReturn:
    """Run beside hostile records and print the report. Raises typer.Exit with the exit code."""
    from drumline.infra.config.state_dir import write_json
    from drumline.lab.chaos.hostile.hostile_run import run_hostile
    from drumline.lab.chaos.hostile.report import HostileReport
    from drumline.lab.demo_recording import DEMO_RECORDING

    errors = terminal_console(stderr=True, highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report = HostileReport(secrets.randbelow(1 << 31) if seed is None else seed)
    errors.print(f"seed {report.seed}")
    try:
        run_hostile(count, data or DEMO_RECORDING, report, lambda text: errors.print(text, markup=False))
    except KeyboardInterrupt:
        report.was_interrupted = True
        errors.print("interrupted; what was started is stopped")
    if write is not None:
        write_json(write, report.as_json())
    if as_json:
        echo(json.dumps(report.as_json()))
    else:
        for line in report.lines():
            echo(line)
    raise typer.Exit(INTERRUPTED if report.was_interrupted else OK if report.clean else FAILED)


def _run(
    minutes: float | None,
    kill: str,
    signals: str,
    brokers: int,
    kills: int,
    rounds: int,
    seed: int | None,
    data: Path | None,
    as_json: bool,
    write: Path | None,
) -> NoReturn:
    """Run the chaos run and print its report. Raises typer.BadParameter, and typer.Exit with the exit code."""
    from drumline.infra.config.state_dir import write_json
    from drumline.lab.chaos.chaos_run import PER_ROUND, Plan, run_chaos
    from drumline.lab.chaos.clocks import missing_compiler
    from drumline.lab.chaos.disks import unmountable
    from drumline.lab.chaos.report import ChaosReport, show
    from drumline.lab.chaos.targets import SIGNALS, targets
    from drumline.lab.demo_recording import DEMO_RECORDING
    from drumline.producers.replay.parquet import BadTrace

    errors = terminal_console(stderr=True, highlight=False)
    if signals not in SIGNALS:
        raise typer.BadParameter(f"{signals!r} is none of {', '.join(SIGNALS)}", param_hint="--signal")
    try:
        chosen = targets(kill, SIGNALS[signals], brokers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--kill") from None
    if kills and rounds:
        raise typer.BadParameter("give --kills or --rounds, not both", param_hint="--rounds")
    per_round = PER_ROUND if "kill" in SIGNALS[signals] else len(chosen)
    kills = kills or rounds * per_round
    kinds = {target.signal for target in chosen}
    if missing := (unmountable() if "full" in kinds else "") or (missing_compiler() if "step" in kinds else ""):
        raise typer.BadParameter(missing, param_hint="--signal")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a private stack must not outlive its chaos run
    report = ChaosReport(secrets.randbelow(1 << 31) if seed is None else seed, kills)
    errors.print(f"seed {report.seed}")
    minutes = minutes or (math.inf if kills else MINUTES)
    plan = Plan(chosen, minutes * 60, kills, report.seed, data or DEMO_RECORDING, per_round, brokers)

    def keep() -> None:
        if write is not None:
            write_json(write, report.as_json())

    def log(text: str) -> None:
        errors.print(text, markup=False)
        keep()

    try:
        keep()
    except OSError as error:
        raise typer.BadParameter(f"{write} cannot be written: {error.strerror}", param_hint="--write") from None
    try:
        run_chaos(plan, report, log)
    except BadTrace as error:
        raise typer.BadParameter(str(error), param_hint="--data") from None
    except KeyboardInterrupt:
        report.was_interrupted = True
        errors.print("interrupted; what was started is stopped")
    keep()
    if as_json:
        echo(json.dumps(report.as_json()))
    else:
        show(report, terminal_console())
    raise typer.Exit(INTERRUPTED if report.was_interrupted else OK if report.clean else FAILED)
