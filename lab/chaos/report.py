"""Results of a chaos run, and their display."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from textwrap import indent
from typing import Any

from rich.console import Console
from rich.table import Table

from drumline.infra.runtime.processes import ManagedProcess
from drumline.lab.chaos.reference import Difference


@dataclass(frozen=True, slots=True)
class Kill:
    """Holds one kill, or a disturbance that lasts.

    delay_s: how long the target had worked.
    again: it was hit before the target before had recovered.
    in_flight: its work then (interrupted_work.py).
    recovery_s: time from the kill, or from the end of what lasts, until it made progress; None where the next kill was
    before that.
    halted_s: length of a halt, a full disk or a step of a clock; 0 for a kill.
    step_s: how far a clock was ahead; 0 where none stepped.
    """

    target: str
    delay_s: float
    again: bool
    in_flight: str
    recovery_s: float | None
    halted_s: float = 0.0
    step_s: int = 0


@dataclass
class Round:
    """Holds some disturbances, and the comparison after them.

    lost, doubled: rows of raw topics, stored against published.
    duplicates: Kafka records that the sink recognised as published twice.
    findings: of the audit.
    is_complete: all comparisons were made.
    """

    kills: list[Kill] = field(default_factory=list)
    runs: int = 0
    published: int = 0
    stored: int = 0
    lost: int = 0
    doubled: int = 0
    duplicates: int = 0
    findings: list[str] = field(default_factory=list)
    results: list[Difference] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_complete: bool = False

    @property
    def clean(self) -> bool:
        """Return whether the round is complete and nothing differs."""
        equal = all(difference.equal for difference in self.results)
        return self.is_complete and equal and not (self.lost or self.doubled or self.findings or self.problems)

    def line(self) -> str:
        """Return one line of progress."""
        targets = ", ".join(f"{count} {name}" for name, count in Counter(kill.target for kill in self.kills).items())
        rows = sum(d.rows for d in self.results)
        verdict = "clean" if self.clean else "NOT CLEAN"
        return f"{targets}; {self.stored:,} rows of {self.runs} replays, {rows:,} results: {verdict}"


@dataclass
class ChaosReport:
    """Holds all rounds of a chaos run.

    requested: kills that it was to make; 0 for as many as the time allows.
    problems: errors that ended it.
    exits: programs that ended by themselves, with their exit codes; they were restarted.
    ends: of the same programs, the last lines that they wrote before each end.
    kept: folder with the state of a run that is not clean.
    """

    seed: int
    requested: int = 0
    rounds: list[Round] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    exits: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0
    was_interrupted: bool = False
    kept: str = ""

    @property
    def kills(self) -> list[Kill]:
        """Return the disturbances of all rounds."""
        return [kill for round_ in self.rounds for kill in round_.kills]

    @property
    def clean(self) -> bool:
        """Return whether there were rounds and all of them are clean."""
        return bool(self.rounds) and all(round_.clean for round_ in self.rounds) and not self.problems

    def take_ends(self, part: str, program: ManagedProcess) -> None:
        """Take over how often and how a program ended by itself; the program forgets it."""
        if program.exits:
            self.exits[part] = [*self.exits.get(part, []), *program.exits]
            self.ends[part] = [*self.ends.get(part, []), *program.ends]
        program.exits.clear()
        program.ends.clear()

    @property
    def missing(self) -> int:
        """Return the number of disturbances that were requested and not made."""
        return max(0, self.requested - len(self.kills))

    def targets(self) -> dict[str, dict[str, Any]]:
        """Return, by target and signal: how often, work in flight, recovery times (s), and how long in all (s)."""
        by_target: dict[str, dict[str, Any]] = {}
        for name in dict.fromkeys(kill.target for kill in self.kills):
            kills = [kill for kill in self.kills if kill.target == name]
            times = [kill.recovery_s for kill in kills if kill.recovery_s is not None]
            by_target[name] = {
                "kills": len(kills),
                "while_recovering": sum(kill.again for kill in kills),
                "in_flight": dict(Counter(kill.in_flight for kill in kills).most_common()),
                "recovery_p50_s": round(statistics.median(times), 2) if times else None,
                "recovery_max_s": round(max(times), 2) if times else None,
                "halted_s": round(sum(kill.halted_s for kill in kills), 1),
            }
        return by_target

    def totals(self) -> dict[str, int]:
        """Return counts over all rounds."""
        sums = {
            name: sum(getattr(round_, name) for round_ in self.rounds)
            for name in ("runs", "published", "stored", "lost", "doubled", "duplicates")
        }
        compared = [difference for round_ in self.rounds for difference in round_.results]
        return {
            "rounds": len(self.rounds),
            "rounds_clean": sum(round_.clean for round_ in self.rounds),
            "audits_clean": sum(round_.is_complete and not round_.findings for round_ in self.rounds),
            **sums,
            "results_compared": sum(d.rows for d in compared),
            "results_missing": sum(d.missing for d in compared),
            "results_extra": sum(d.extra for d in compared),
        }

    def as_json(self) -> dict[str, Any]:
        """Return the whole report, for JSON."""
        counts = {"clean": self.clean, "kills": len(self.kills), "kills_missing": self.missing}
        return {**counts, "targets": self.targets(), "totals": self.totals(), **asdict(self)}


def show(report: ChaosReport, console: Console) -> None:
    """Print the report."""
    table = Table(box=None, pad_edge=False)
    for name in ("target", "times", "while recovering", "back after s, p50", "max", "lasted s"):
        table.add_column(name, justify="left" if name == "target" else "right")
    by_target = report.targets()
    for name, line in by_target.items():
        cells = ("kills", "while_recovering", "recovery_p50_s", "recovery_max_s", "halted_s")
        table.add_row(name, *(str(line[cell]) for cell in cells))
    console.print(table)
    for name, line in by_target.items():
        for work, count in line["in_flight"].items():
            console.print(f"  {name}: {count:>4}  {work}", highlight=False)
    t = report.totals()
    for text in (
        f"{t['rounds_clean']} of {t['rounds']} rounds clean, {t['audits_clean']} audits clean",
        f"{t['published']:,} rows of {t['runs']} replays published, {t['stored']:,} stored, {t['lost']:,} lost, "
        f"{t['doubled']:,} doubled; {t['duplicates']:,} records came twice and were stored once",
        f"{t['results_compared']:,} results compared with an undisturbed computation: "
        f"{t['results_missing']:,} missing, {t['results_extra']:,} different",
    ):
        console.print(text, highlight=False)
    for name, codes in report.exits.items():
        console.print(f"{name} ended by itself {len(codes)} times, exit codes {dict(Counter(codes))}", highlight=False)
        for text in report.ends.get(name, []):
            console.print(indent(text or "(it wrote nothing)", "    "), markup=False, highlight=False, soft_wrap=True)
    if report.missing:
        text = f"{len(report.kills)} of {report.requested} kills made: it ended before the others"
        console.print(text, style="yellow", highlight=False)
    for text in report.problems:
        console.print(text, style="red", markup=False, highlight=False)
    for number, round_ in enumerate(report.rounds, 1):
        for text in (*round_.problems, *round_.findings):
            console.print(f"round {number}: {text}", style="red", markup=False, highlight=False)
        for d in round_.results:
            if not d.equal:
                text = (
                    f"round {number}: {d.table}: {d.missing} of {d.rows} results missing, {d.extra} others: {d.example}"
                )
                console.print(f"round {number}: {text[:600]}", style="red", markup=False, highlight=False)
    if report.kept:
        console.print(f"state is kept: `. {report.kept}/environment`, then drumline up, audit, sql", highlight=False)
