"""Runs rounds of disturbances under load; after each round it drains, audits and compares all rows."""

from __future__ import annotations

import math
import random
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from confluent_kafka import KafkaException

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError
from drumline.infra.kafka.drain import wait_stored
from drumline.infra.localstack.ephemeral import environment, run_audit
from drumline.infra.runtime.processes import ProcessFailed, check_all
from drumline.lab.chaos import clocks, disks
from drumline.lab.chaos.load import bytes_in
from drumline.lab.chaos.progress import GROUPS
from drumline.lab.chaos.reference import ReferenceRun, reference_results
from drumline.lab.chaos.report import ChaosReport, Kill, Round
from drumline.lab.chaos.spans import LONGEST_S, SHORTEST_S
from drumline.lab.chaos.system import Stuck, System, running, settings_in
from drumline.lab.chaos.targets import KillTarget
from drumline.lab.row_counts import counts

#: Repetitions of the recording in one replay, and speeds: as fast as it goes (always behind), or paced (at the head).
LOOPS, SPEEDS = 2, ("max", "3")
DRAIN_S = 600.0
#: Further audits, at most: a worker reports a silent job by its clock, so a record may come after the drain.
LATE_AUDITS = 2
#: Size on disk from which a new stack replaces the old one; less where the disk is memory that can be full.
DISK_BYTES, FULL_DISK_BYTES = 4 << 30, 1 << 30
#: Share of kills that hit a program before it has recovered from the kill before.
REPEATED = 0.25
#: Share of halts, and of all else that lasts, during which the next target is hit, and time until then, at most.
OVERLAPPING, GAP_S = 0.8, 8.0
#: Kills in a round. A round with nothing but disturbances that last has each target once.
PER_ROUND = 8
#: Pieces of work, at most, that a program completes before it is killed.
PIECES = 3
#: Errors that end a chaos run, with its report: no progress, a program that stays down, a stack that does not start,
#: or a server that does not answer.
ENDING_ERRORS = (Stuck, ProcessFailed, StackError, clickhouse.ClickHouseFailed, KafkaException)
Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Describes a chaos run.

    seconds: no further round begins after that; infinite for no bound.
    kills: disturbances in all; 0 for no bound.
    per_round: disturbances in a round.
    brokers: of the private stack.
    """

    targets: Sequence[KillTarget]
    seconds: float
    kills: int
    seed: int
    recording: Path
    per_round: int = PER_ROUND
    brokers: int = 1


def run_chaos(plan: Plan, report: ChaosReport, log: Log) -> None:
    """Fill `report` round by round, so that it is usable whenever the run ends.

    At least one round runs, however short the time. The run ends after the first round that is not clean or that fails
    with one of ENDING_ERRORS, and keeps its state. Raises BadTrace, before anything is killed.
    """
    rng, began = random.Random(plan.seed), time.monotonic()

    def is_over() -> bool:
        done = len(report.kills)
        late = bool(report.rounds) and time.monotonic() - began >= plan.seconds
        return late or bool(plan.kills and done >= plan.kills)

    def may_continue() -> bool:
        return not is_over() and (report.clean or not report.rounds) and not report.problems

    log("computing the results of a reference run")
    expected = reference_results(settings_in(Path(), plan.targets), plan.recording, LOOPS)
    while may_continue():
        folder = Path(tempfile.mkdtemp(prefix="drumline-chaos-"))
        settings = settings_in(folder, plan.targets, plan.brokers)
        fine = False
        try:
            log("starting Kafka and ClickHouse")
            drawn = deck(plan.targets, rng)
            with running(settings, plan.recording, LOOPS, plan.targets) as system:
                client = clickhouse.connect(settings)
                reference = ReferenceRun(settings, client, expected)
                has_full = any(target.signal == "full" for target in plan.targets)
                while may_continue() and bytes_in(folder) < (FULL_DISK_BYTES if has_full else DISK_BYTES):
                    round_ = Round()
                    report.rounds.append(round_)
                    left = plan.kills - len(report.kills) if plan.kills else plan.per_round
                    try:
                        _round(round_, system, reference, rng, islice(drawn, min(left, plan.per_round)), log)
                    finally:
                        for part, program in system.programs.items():
                            report.take_ends(part, program)
                    log(f"round {len(report.rounds)}: {round_.line()}")
            fine = report.clean
        except ENDING_ERRORS as error:
            fine = False
            where = f"round {len(report.rounds)}" if report.rounds else "before the first round"
            report.problems.append(f"{where}: {error}")
        except KeyboardInterrupt:
            fine = True
            raise
        finally:
            report.seconds = time.monotonic() - began
            if fine:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                report.kept = str(folder)
                (folder / "environment").write_text(_exports(settings))


def deck(targets: Sequence[KillTarget], rng: random.Random) -> Iterator[KillTarget]:
    """Yield targets for ever, at random: each comes once before any comes again."""
    while True:
        yield from rng.sample(targets, len(targets))


def _round(
    round_: Round, system: System, reference: ReferenceRun, rng: random.Random, targets: Iterable[KillTarget], log: Log
) -> None:
    system.load.begin(rng.choice(SPEEDS))
    cycles = system.progress.cycles  # how long its work takes is known once some of it was done
    _wait(
        lambda: system.tick() and min(len(cycles[g]) for g in ("sink", "worker")) > 2, "sink or worker make no progress"
    )
    victims, broker_halted_s = list(targets), 0.0
    for number, target in enumerate(victims, 1):
        is_repeated = bool(round_.kills) and round_.kills[-1].recovery_s is None
        if target.has_broker:  # one at a time: with two away nothing is acknowledged, and jobs would seem silent
            system.tick_for(broker_halted_s - time.monotonic())
        gap = GAP_S if target.lasts else _mean_recovery(round_)
        delay = rng.uniform(0, gap) if is_repeated else rng.random() * PIECES * rng.choice(_cycles(system, target))
        if not is_repeated:
            _wait(lambda: system.is_busy(target), f"{target.name} has nothing to do")  # noqa: B023  # called at once
        system.tick_for(delay)
        lasts_s, step_s = _extent(target, rng)
        in_flight, runs_s, seen = system.disturb(target, rng, lasts_s, step_s)
        broker_halted_s = runs_s if target.has_broker else broker_halted_s
        system.load.ending = target.lasts and number == len(victims)  # sources fall silent during the last one
        recovery = None
        if number == len(victims) or rng.random() >= (OVERLAPPING if target.lasts else REPEATED):
            recovery = round(system.wait_recovered(target, runs_s, seen), 3)
        round_.kills.append(Kill(target.name, round(delay, 3), is_repeated, in_flight, recovery, lasts_s, step_s))
        text = f"{target.name}{f' by {step_s:+} s' if step_s else ''} for {lasts_s} s"
        text = text if target.lasts else f"killed {target.name}"
        log(f"{text}: {in_flight}" + (f"; back after {recovery:.1f} s" if recovery else ""))
    _wait(lambda: (system.tick(), system.spans.is_over)[1], "a disturbance does not end")
    system.load.ending = True
    _wait(lambda: (system.tick(), system.load.is_over)[1], "the replay does not end")
    log("draining")
    waited = wait_stored(system.settings, DRAIN_S, lambda: check_all(system.programs.values()))
    if not waited:
        raise Stuck(f"not drained within {DRAIN_S:.0f} s: {waited.reason}")
    log("auditing")
    _evaluate(round_, system, reference)


def _extent(target: KillTarget, rng: random.Random) -> tuple[float, int]:
    """Return how long a disturbance lasts, 0 for a kill, and how far a clock steps; s."""
    if not target.lasts:
        return 0.0, 0
    shortest, longest = (disks.SHORTEST_S, disks.LONGEST_S) if target.signal == "full" else (SHORTEST_S, LONGEST_S)
    lasts_s = round(rng.uniform(shortest, longest), 1)
    if target.signal != "step":
        return lasts_s, 0
    size = math.exp(rng.uniform(math.log(clocks.SMALLEST_S), math.log(clocks.LARGEST_S)))
    return lasts_s, rng.choice((-1, 1)) * round(size)


def _wait(until: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + DRAIN_S
    while not until():
        if time.monotonic() > deadline:
            raise Stuck(f"{otherwise}, for {DRAIN_S:.0f} s")


def _cycles(system: System, target: KillTarget) -> list[float]:
    return [seconds for group in sorted(target.stalls) or GROUPS for seconds in system.progress.cycles[group]]


def _mean_recovery(round_: Round) -> float:
    times = [kill.recovery_s for kill in round_.kills if kill.recovery_s is not None]
    return sum(times) / len(times) if times else 3.0


def _evaluate(round_: Round, system: System, reference: ReferenceRun) -> None:
    round_.problems += system.load.problems
    client = clickhouse.connect(system.settings, database=system.settings.clickhouse.database)
    for run in system.load.runs:
        round_.runs += 1
        for count in counts(lambda sql, values: clickhouse.rows(client, sql, values), run["run"], run["rows"]):
            round_.published += count.published
            round_.stored += count.stored
            round_.lost += max(0, count.published - count.stored)
            round_.doubled += max(0, count.stored - count.published)
        duplicates = "SELECT count() AS n FROM ledger WHERE disposition = 'duplicate' AND run = {run:String}"
        round_.duplicates += int(clickhouse.rows(client, duplicates, {"run": run["run"]})[0]["n"])
        round_.results += reference.compare(run["run"])
    client.close()
    try:
        answer = run_audit(system.env)
        for _ in range(LATE_AUDITS):
            if all(finding["kind"] != "not_drained" for finding in answer["findings"]):
                break
            wait_stored(system.settings, DRAIN_S, lambda: check_all(system.programs.values()))
            answer = run_audit(system.env)
    except RuntimeError as error:
        round_.problems.append(str(error))
        return
    round_.findings += [f"{f['kind']} {f['where']}: {f['text']}" for f in answer["findings"]]
    round_.is_complete = True


def _exports(settings: Settings) -> str:
    variables = {name: value for name, value in environment(settings).items() if name.startswith("DRUMLINE_")}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))
