"""Evaluates rules as Grafana's alerting does, by its documentation: a port for tests, without Grafana.

Documented semantics (grafana.com/docs/grafana/latest/alerting: "Queries and conditions", "Alert rule evaluation",
"Stale alert instances", "No data and error states"):
- a table with one number column and text columns is one number per row, its text columns the labels; anything else,
  or the same labels twice, is an error of the whole rule;
- threshold: null is no data, NaN is above any limit, else the comparison;
- `for`: Pending from the first breach, Alerting when it has lasted so long; keep firing: Recovering for so long after
  the last breach; a breach in between makes it Alerting again;
- no rows at all: the rule's no-data state; a row that is gone: its alert stays as it is, and is resolved after
  `missing` evaluations without it;
- values in messages: those with the alert's own labels, else with more or fewer of them (pkg/services/ngalert/eval).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from drumline.infra.grafana.alerts.rule import Rule

Labels = tuple[tuple[str, str], ...]
Frame = tuple[Sequence[tuple[str, str]], Sequence[Sequence[Any]]]  # (column, ClickHouse type), rows
NORMAL, PENDING, ALERTING, RECOVERING, NO_DATA, ERROR = "Normal", "Pending", "Alerting", "Recovering", "NoData", "Error"
NUMBER = re.compile(r"^(Nullable\()?(LowCardinality\()?(U?Int\d+|Float\d+|Decimal.*)")
TEXT = re.compile(r"^(Nullable\()?(LowCardinality\()?(Nullable\()?(String|FixedString|Enum|UUID)")


class BadFrame(ValueError):
    """Grafana would not take it for numbers with labels."""


def numbers(frame: Frame) -> dict[Labels, float | None]:
    """Labels -> value of an instant query. Raises BadFrame."""
    columns, rows = frame
    numeric = [i for i, (_, kind) in enumerate(columns) if NUMBER.match(kind)]
    text = [i for i, (_, kind) in enumerate(columns) if TEXT.match(kind)]
    if len(numeric) != 1 or len(text) + 1 != len(columns):
        raise BadFrame(f"input data must be a wide series but got {columns}")
    by_labels: dict[Labels, float | None] = {}
    for row in rows:
        labels = tuple((columns[i][0], str(row[i])) for i in text)
        if labels in by_labels:
            raise BadFrame(f"frame cannot uniquely be identified by its labels: {labels}")
        value = row[numeric[0]]
        by_labels[labels] = None if value is None else float(value)
    return by_labels


def breached(rule: Rule, value: float) -> bool:
    if math.isnan(value):
        return True
    match rule.compare:
        case "gt":
            return value > rule.limit[0]
        case "lt":
            return value < rule.limit[0]
        case "within_range":
            return rule.limit[0] < value < rule.limit[1]


@dataclass
class Instance:
    """One alert of a rule. `since`: when the present state began; s."""

    state: str = NORMAL
    since: float = 0.0
    missed: int = 0

    def to(self, state: str, now: float) -> None:
        if state != self.state:
            self.state, self.since = state, now

    def advance(self, rule: Rule, bad: bool, now: float) -> None:
        self.missed = 0
        if bad:
            if self.state in (ALERTING, RECOVERING):
                self.to(ALERTING, now)
                return
            self.to(PENDING, now)
            if now - self.since >= rule.for_s:
                self.to(ALERTING, now)
        elif self.state in (ALERTING, RECOVERING) and rule.keep_s:
            self.to(RECOVERING, now)
            if now - self.since >= rule.keep_s:
                self.to(NORMAL, now)
        else:
            self.to(NORMAL, now)


@dataclass
class Evaluator:
    """Evaluates one rule again and again. `run_statement(sql, from_s, to_s)` runs a statement over a time range.

    Values that do not decide are read when a message first needs them.
    """

    rule: Rule
    run_statement: Callable[[str, float, float], Frame]
    alerts: dict[Labels, Instance] = field(default_factory=dict)
    values: dict[str, dict[Labels, float | None]] = field(default_factory=dict)
    health: str = NORMAL
    now: float = 0.0

    def read(self, ref: str) -> dict[Labels, float | None]:
        """Return values of the last evaluation. Raises BadFrame."""
        if ref not in self.values:
            [sql] = [values.sql for values in self.rule.values if values.ref == ref]
            try:
                self.values[ref] = numbers(
                    self.run_statement(sql, self.now - self.rule.range_s, self.now - self.rule.until_s)
                )
            except BadFrame:
                self.health = ERROR
                raise
        return self.values[ref]

    def evaluate(self, now: float) -> None:
        rule = self.rule
        self.now, self.values = now, {}
        current = self.read(rule.values[0].ref)
        self.health = NORMAL if current or rule.no_data == "OK" else NO_DATA
        for labels, value in current.items():
            alert = self.alerts.setdefault(labels, Instance(since=now))
            if value is None:
                alert.to(NORMAL if rule.no_data == "OK" else NO_DATA, now)
            else:
                alert.advance(rule, breached(rule, value), now)
        for labels in self.alerts.keys() - current.keys():
            self.alerts[labels].missed += 1
            if self.alerts[labels].missed >= rule.missing:
                del self.alerts[labels]

    def firing(self) -> list[dict[str, str]]:
        """Return the labels of the alerts that are sent."""
        return [dict(labels) for labels, alert in self.alerts.items() if alert.state in (ALERTING, RECOVERING)]

    def _captured(self, ref: str, labels: dict[str, str]) -> tuple[dict[str, str], float | None]:
        """Return labels and number of the values that an alert's message sees. Raises ValueError unless one fits."""
        alert = set(labels.items())
        fitting = [
            (dict(row), number) for row, number in self.read(ref).items() if set(row) <= alert or alert <= set(row)
        ]
        [exact] = [pair for pair in fitting if pair[0] == labels] or fitting
        return exact

    def rendered(self, text: str, labels: dict[str, str]) -> str:
        """Return an annotation with its labels and values filled in, and `if` decided: gt, ge, eq of a value and a
        number, eq and ne of a label and a text.

        Other functions of the template language are removed.
        """

        def decide(match: re.Match[str]) -> str:
            _, number = self._captured(match[1], labels)
            return match[2] if number is not None and number > 0 else ""

        def fill(match: re.Match[str]) -> str:
            inner = match[1]
            if text := re.search(r"\$values\.(\w+)\.Labels\.(\w+)", inner):
                return self._captured(text[1], labels)[0][text[2]]
            if label := re.search(r"\$labels\.(\w+)", inner):
                return labels[label[1]]
            if value := re.search(r"\$values\.(\w+)\.Value", inner):
                _, number = self._captured(value[1], labels)
                return "none" if number is None else f"{number:.4g}"
            return "http://grafana/" if "externalURL" in inner else ""

        def choose(match: re.Match[str]) -> str:
            parts = re.split(r"\{\{ (?:else )?if eq \$values\.(\w+)\.Value ([\d.]+) \}\}", match[1])
            last, _, otherwise = parts.pop().partition("{{ else }}")
            _, *cases = [*parts, last]  # name, number, text of each
            for name, number, chosen in zip(cases[::3], cases[1::3], cases[2::3], strict=True):
                if self._captured(name, labels)[1] == float(number):
                    return chosen
            return otherwise

        def rise(match: re.Match[str]) -> str:
            _, number = self._captured(match[1], labels)
            return match[3] if number is not None and number >= float(match[2]) else match[4]

        def agree(match: re.Match[str]) -> str:
            value = labels[match[3]] if match[3] else self._captured(match[4], labels)[0][match[5]]
            return match[7] if (value == match[6]) == (match[1] == "eq") else ""

        compared = r"\{\{ if (eq|ne) (\$labels\.(\w+)|\$values\.(\w+)\.Labels\.(\w+)) \"(\w*)\" \}\}(.*?)\{\{ end \}\}"
        text = re.sub(compared, agree, text)
        either = r"\{\{ if ge \$values\.(\w+)\.Value ([\d.]+) \}\}(.*?)\{\{ else \}\}(.*?)\{\{ end \}\}"
        text = re.sub(either, rise, text)
        text = re.sub(r"(\{\{ if eq .*?)\{\{ end \}\}", choose, text)
        text = re.sub(r"\{\{ if gt \$values\.(\w+)\.Value 0\.0 \}\}(.*?)\{\{ end \}\}", decide, text)
        return re.sub(r"\{\{(.*?)\}\}", fill, text)
