"""What a campaign found."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from drumline.infra.chaos.reference import Difference


@dataclass(frozen=True, slots=True)
class Kill:
    """`delay_s`: how long it had worked. `again`: it died while it recovered from the kill before. `recovery_s`: until
    it worked again; None where it was killed again first."""

    target: str
    delay_s: float
    again: bool
    interrupted: str
    recovery_s: float | None


@dataclass
class Round:
    """Some kills, then all is worked off and compared. `lost`, `doubled`: rows of raw topics, published against stored.
    `duplicates`: Kafka records that the sink recognised as published twice. `findings`: of the audit. `judged`: it came
    to its end."""

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
    judged: bool = False

    @property
    def clean(self) -> bool:
        equal = all(difference.equal for difference in self.results)
        return self.judged and equal and not (self.lost or self.doubled or self.findings or self.problems)

    def line(self) -> str:
        """One line of progress."""
        targets = ", ".join(f"{count} {name}" for name, count in Counter(kill.target for kill in self.kills).items())
        rows = sum(d.rows for d in self.results)
        verdict = "clean" if self.clean else "NOT CLEAN"
        return f"killed {targets}; {self.stored:,} rows of {self.runs} replays, {rows:,} results: {verdict}"


@dataclass
class Report:
    """All rounds of a campaign. `asked`: kills that it was to make, 0 = as many as the time allows. `problems`: what
    ended it. `exits`: programs that ended by themselves, with their exit codes; they were started again. `kept`: where
    the state of a campaign that found something is."""

    seed: int
    asked: int = 0
    rounds: list[Round] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    exits: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0
    interrupted: bool = False
    kept: str = ""

    @property
    def kills(self) -> list[Kill]:
        return [kill for round_ in self.rounds for kill in round_.kills]

    @property
    def clean(self) -> bool:
        return bool(self.rounds) and all(round_.clean for round_ in self.rounds) and not self.problems

    @property
    def missing(self) -> int:
        """Kills that were asked for and not made."""
        return max(0, self.asked - len(self.kills))

    def targets(self) -> dict[str, dict[str, Any]]:
        """Per target: kills, what they interrupted, and recovery times in s (from the kill until work moved on)."""
        found: dict[str, dict[str, Any]] = {}
        for name in dict.fromkeys(kill.target for kill in self.kills):
            kills = [kill for kill in self.kills if kill.target == name]
            times = [kill.recovery_s for kill in kills if kill.recovery_s is not None]
            found[name] = {
                "kills": len(kills),
                "while_recovering": sum(kill.again for kill in kills),
                "interrupted": dict(Counter(kill.interrupted for kill in kills).most_common()),
                "recovery_p50_s": round(statistics.median(times), 2) if times else None,
                "recovery_max_s": round(max(times), 2) if times else None,
            }
        return found

    def totals(self) -> dict[str, int]:
        sums = {
            name: sum(getattr(round_, name) for round_ in self.rounds)
            for name in ("runs", "published", "stored", "lost", "doubled", "duplicates")
        }
        compared = [difference for round_ in self.rounds for difference in round_.results]
        return {
            "rounds": len(self.rounds),
            "rounds_clean": sum(round_.clean for round_ in self.rounds),
            "audits_clean": sum(round_.judged and not round_.findings for round_ in self.rounds),
            **sums,
            "results_compared": sum(d.rows for d in compared),
            "results_missing": sum(d.missing for d in compared),
            "results_extra": sum(d.extra for d in compared),
        }

    def as_json(self) -> dict[str, Any]:
        counts = {"clean": self.clean, "kills": len(self.kills), "kills_missing": self.missing}
        return {**counts, "targets": self.targets(), "totals": self.totals(), **asdict(self)}


def show(report: Report, console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("killed", "times", "while recovering", "back after s, p50", "max"):
        table.add_column(name, justify="left" if name == "killed" else "right")
    found = report.targets()
    for name, line in found.items():
        cells = ("kills", "while_recovering", "recovery_p50_s", "recovery_max_s")
        table.add_row(name, *(str(line[cell]) for cell in cells))
    console.print(table)
    for name, line in found.items():
        for what, count in line["interrupted"].items():
            console.print(f"  {name}: {count:>4}  {what}", highlight=False)
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
    if report.missing:
        text = f"{len(report.kills)} of {report.asked} kills made: it ended before the others"
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
