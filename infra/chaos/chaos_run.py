"""A kill campaign: rounds of kills under load; after each, everything is worked off, audited and compared."""

from __future__ import annotations

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

from drumline.infra.chaos.load import bytes_in
from drumline.infra.chaos.reference import Calm, undisturbed
from drumline.infra.chaos.report import Kill, Report, Round
from drumline.infra.chaos.system import Stuck, System, running, settings_in
from drumline.infra.chaos.targets import Target
from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.row_counts import counts
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError
from drumline.infra.kafka.drain import wait_stored
from drumline.infra.localstack.ephemeral import environment, run_audit
from drumline.infra.runtime.processes import ProcessFailed, check_all

#: Repetitions of the recording in one replay, and speeds: as fast as it goes (always behind), or paced (at the head).
LOOPS, SPEEDS = 2, ("max", "3")
DRAIN_S = 600.0
#: A worker says by its clock that a job is silent, so a record may come when all was worked off: audits more, at most.
LATE = 2
#: A stack is given up for a new one when it has so many bytes on disk.
DISK_BYTES = 4 << 30
#: Share of kills that hit a program that has not recovered from the one before.
AGAIN = 0.25
#: Pieces of work, at most, that a program gets done before it is killed.
PIECES = 3
#: What ends a campaign, with its report: nothing moves, a program gave up, the stack did not start, or Kafka or
#: ClickHouse did not answer when they had to.
TROUBLE = (Stuck, ProcessFailed, StackError, clickhouse.ClickHouseFailed, KafkaException)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """`kills`: in all, 0 = no bound. `seconds`: infinite = no bound. `per_round`: kills in a round."""

    targets: Sequence[Target]
    seconds: float
    kills: int
    seed: int
    recording: Path
    per_round: int = 8


def campaign(plan: Plan, report: Report, say: Say) -> None:
    """Fills `report` as it goes, so that an interrupted one has what was found so far. One round is begun however short
    the time; stops after the first that is not clean, or that came to no end (TROUBLE), and keeps its state. Raises
    BadTrace, before anything is killed."""
    rng, began = random.Random(plan.seed), time.monotonic()

    def over() -> bool:
        done = len(report.kills)
        late = bool(report.rounds) and time.monotonic() - began >= plan.seconds
        return late or bool(plan.kills and done >= plan.kills)

    def going_on() -> bool:
        return not over() and (report.clean or not report.rounds) and not report.problems

    say("computing what an undisturbed run gives")
    expected = undisturbed(settings_in(Path()), plan.recording, LOOPS)
    while going_on():
        folder = Path(tempfile.mkdtemp(prefix="drumline-chaos-"))
        settings = settings_in(folder)
        fine = False
        try:
            say("starting Kafka and ClickHouse")
            drawn = deck(plan.targets, rng)
            with running(settings, plan.recording, LOOPS, plan.targets) as system:
                client = clickhouse.connect(settings)
                calm = Calm(settings, client, expected)
                while going_on() and bytes_in(folder) < DISK_BYTES:
                    round_ = Round()
                    report.rounds.append(round_)
                    left = plan.kills - len(report.kills) if plan.kills else plan.per_round
                    try:
                        _round(round_, system, calm, rng, islice(drawn, min(left, plan.per_round)), say)
                    finally:
                        for part, program in system.programs.items():
                            report.exits[part] = [*report.exits.get(part, []), *program.exits]
                            program.exits.clear()
                    say(f"round {len(report.rounds)}: {round_.line()}")
            fine = report.clean
        except TROUBLE as error:
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


def deck(targets: Sequence[Target], rng: random.Random) -> Iterator[Target]:
    """For ever, at random, but all equally often: each comes once before any comes again."""
    while True:
        yield from rng.sample(targets, len(targets))


def _round(round_: Round, system: System, calm: Calm, rng: random.Random, targets: Iterable[Target], say: Say) -> None:
    system.load.begin(rng.choice(SPEEDS))
    cycles = system.progress.cycles  # how long its work takes is known once some of it was done
    _wait(lambda: system.turn() and min(len(cycles[g]) for g in ("sink", "worker")) > 2, "sink or worker do nothing")
    victims = list(targets)
    for number, target in enumerate(victims, 1):
        again = bool(round_.kills) and round_.kills[-1].recovery_s is None
        mean = _mean_recovery(round_)
        delay = rng.uniform(0, mean) if again else rng.random() * PIECES * rng.choice(_cycles(system, target))
        if not again:
            _wait(lambda: system.busy(target), f"{target.name} gets nothing to do")  # noqa: B023  # called at once
        system.pause(delay)
        killed_s = time.monotonic()
        what, seen = system.kill(target, rng)
        recovery = None
        if number == len(victims) or rng.random() >= AGAIN:
            recovery = system.flowing(target, killed_s, seen)
        round_.kills.append(Kill(target.name, round(delay, 3), again, what, recovery and round(recovery, 3)))
        say(f"killed {target.name}: {what}" + (f"; back after {recovery:.1f} s" if recovery else ""))
    system.load.ending = True
    _wait(lambda: (system.turn(), system.load.over)[1], "the replay does not end")
    say("working everything off")
    waited = wait_stored(system.settings, DRAIN_S, lambda: check_all(system.programs.values()))
    if not waited:
        raise Stuck(f"not worked off within {DRAIN_S:.0f} s: {waited.reason}")
    say("auditing")
    _judge(round_, system, calm)


def _wait(until: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + DRAIN_S
    while not until():
        if time.monotonic() > deadline:
            raise Stuck(f"{otherwise}, for {DRAIN_S:.0f} s")


def _cycles(system: System, target: Target) -> list[float]:
    return [seconds for group in sorted(target.stalls) for seconds in system.progress.cycles[group]]


def _mean_recovery(round_: Round) -> float:
    times = [kill.recovery_s for kill in round_.kills if kill.recovery_s is not None]
    return sum(times) / len(times) if times else 3.0


def _judge(round_: Round, system: System, calm: Calm) -> None:
    round_.problems += system.load.problems
    client = clickhouse.connect(system.settings, database=system.settings.clickhouse.database)
    for run in system.load.runs:
        round_.runs += 1
        for count in counts(lambda sql, values: clickhouse.rows(client, sql, values), run["run"], run["rows"]):
            round_.published += count.published
            round_.stored += count.stored
            round_.lost += max(0, count.published - count.stored)
            round_.doubled += max(0, count.stored - count.published)
        again = "SELECT count() AS n FROM ledger WHERE verdict = 'duplicate' AND run = {run:String}"
        round_.duplicates += int(clickhouse.rows(client, again, {"run": run["run"]})[0]["n"])
        round_.results += calm.compare(run["run"])
    client.close()
    try:
        answer = run_audit(system.env)
        for _ in range(LATE):
            if all(finding["kind"] != "not_drained" for finding in answer["findings"]):
                break
            wait_stored(system.settings, DRAIN_S, lambda: check_all(system.programs.values()))
            answer = run_audit(system.env)
    except RuntimeError as error:
        round_.problems.append(str(error))
        return
    round_.findings += [f"{f['kind']} {f['where']}: {f['text']}" for f in answer["findings"]]
    round_.judged = True


def _exports(settings: Settings) -> str:
    mine = {name: value for name, value in environment(settings).items() if name.startswith("DRUMLINE_")}
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(mine.items()))
