"""Results of a run beside hostile records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from drumline.lab.chaos.reference import Difference

#: Verdicts may come that much later beside hostile records; p95.
SLOWER = 2.0


@dataclass
class HostileReport:
    """Holds the result of a hostile run.

    sent: hostile records that Kafka acknowledged. rejected: not taken by Kafka or its client, too large mostly.
    dispositions: their number in the ledger, by disposition. unaccounted: those that are not in it.
    delays: seconds from a window's last step in Kafka to its verdict in ClickHouse: alone, and beside them; a list for
    each round. worker_delays: those to its verdict in Kafka. cores: that each part of a round used, and others on this
    machine.
    exits: of programs and servers. findings: of the audit of the job.
    """

    seed: int
    sent: int = 0
    rejected: int = 0
    dispositions: dict[str, int] = field(default_factory=dict)
    unaccounted: list[str] = field(default_factory=list)
    delays: dict[str, list[list[float]]] = field(default_factory=dict)
    worker_delays: dict[str, list[list[float]]] = field(default_factory=dict)
    cores: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    results: list[Difference] = field(default_factory=list)
    exits: dict[str, list[int]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0
    was_interrupted: bool = False
    kept: str = ""

    @property
    def ratio(self) -> float:
        """Return the p95 of the delays of all rounds beside hostile records, relative to that of the job alone."""
        plain, beside = (p95(pooled(self.delays.get(name, []))) for name in ("alone", "beside"))
        return beside / plain if plain else 0.0

    @property
    def round_ratios(self) -> list[float]:
        """Return the ratio of each round: how far they are apart shows how quiet the machine was."""
        rounds = zip(self.delays.get("alone", []), self.delays.get("beside", []), strict=False)
        return [p95(beside) / p95(plain) if plain else 0.0 for plain, beside in rounds]

    @property
    def clean(self) -> bool:
        """Return whether every record is accounted for and the job noticed nothing."""
        wrong = self.unaccounted or self.problems or self.findings or any(self.exits.values())
        compared = bool(self.results) and all(difference.equal for difference in self.results)
        return not wrong and compared and 0 < self.ratio <= SLOWER

    def as_json(self) -> dict[str, Any]:
        """Return the whole report, for JSON."""
        delays = {
            name: {
                "windows": len(pooled(rounds)),
                "p95_s": p95(pooled(rounds)),
                "worker_p95_s": p95(pooled(self.worker_delays.get(name, []))),
                "rounds_s": rounds,
            }
            for name, rounds in self.delays.items()
        }
        report = asdict(self)
        del report["worker_delays"]
        ratios = {"ratio": self.ratio, "round_ratios": self.round_ratios}
        return {"clean": self.clean, **ratios, **report, "delays": delays}

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        yield f"{self.sent:,} hostile records, {self.rejected:,} not taken by Kafka"
        yield f"{len(self.unaccounted):,} not in the ledger"
        yield f"in the ledger: {', '.join(f'{n:,} {name}' for name, n in sorted(self.dispositions.items()))}"
        for name, rounds in self.delays.items():
            in_kafka_s, values = p95(pooled(self.worker_delays.get(name, []))), pooled(rounds)
            yield (
                f"verdicts of the job {name}: {len(values)} windows, delay p95 {p95(values):.2f} s, "
                f"in Kafka after {in_kafka_s:.2f} s"
            )
            for number, cores in enumerate(self.cores.get(name, []), start=1):
                used = ", ".join(f"{part} {amount:.2f}" for part, amount in cores.items() if amount)
                yield f"cores used {name}, round {number}: {used}"
        of_rounds = ", ".join(f"{ratio:.2f}" for ratio in self.round_ratios)
        yield f"ratio {self.ratio:.2f}, bar {SLOWER:g}; of the rounds: {of_rounds}"
        for difference in self.results:
            text = f"{difference.rows:,} rows, {difference.missing} missing, {difference.extra} others"
            yield f"{difference.table}: {text} {difference.example[:400]}"
        for name, codes in self.exits.items():
            if codes:
                yield f"{name} ended: {codes}"
        yield from (*self.problems, *self.findings, *self.unaccounted[:20])
        yield "clean" if self.clean else f"not clean; state is kept in {self.kept}"


def pooled(rounds: list[list[float]]) -> list[float]:
    """Return the values of all rounds."""
    return [value for values in rounds for value in values]


def p95(values: list[float]) -> float:
    """Return the 95th percentile; 0 without values."""
    return sorted(values)[round(0.95 * (len(values) - 1))] if values else 0.0
