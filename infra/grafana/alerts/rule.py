"""Alert rules as values. The modules of this package declare them, provisioning/rules.py writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from drumline.infra.grafana.limits import Limit, moved
from drumline.infra.grafana.liveness import ACTIVE_RUNS, RECORDED_RUNS, owners
from drumline.infra.grafana.tokens import sql

NoData = Literal["OK", "NoData", "Alerting", "KeepLast"]
Compare = Literal["gt", "lt", "within_range"]


@dataclass(frozen=True, slots=True)
class Values:
    """Holds a statement with one number column, `value`; its text columns are labels, unique together.

    Those of a rule's first values are the labels of its alerts: who it is, and nothing that may change. Others may have
    fewer or more of them: Grafana joins values of which one has all labels of the other, so a text that may change is
    `$values.REF.Labels.name` in messages (ngalert/eval).
    """

    text: str
    ref: str = "A"

    @property
    def sql(self) -> str:
        """Return the statement without tokens."""
        return sql(self.text)


def with_owner(text: str, runs: str = RECORDED_RUNS, keys: str = "job, run", ref: str = "A") -> Values:
    """Return values with the labels job_team, job_user and job_namespace, by which notification policies may route."""
    return Values(
        f"""
        SELECT whole.*, if(team = '', 'none', team) AS job_team, if(user = '', 'none', user) AS job_user,
            if(namespace = '', 'none', namespace) AS job_namespace
        FROM ({text}) AS whole LEFT JOIN ({owners(runs, keys)}) AS owners USING ({keys})
        """,
        ref,
    )


def of_active(text: str, ref: str = "A") -> Values:
    """Return values with owners, where all runs are active."""
    return with_owner(text, ACTIVE_RUNS, ref=ref)


def limited(text: str, limit: Limit, runs: str = RECORDED_RUNS, keys: str = "job, run") -> Values:
    """Return what is compared: with owners, moved where a job has a limit of its own.

    runs: those that `text` may name; all of a long range cost more than the rule.
    """
    return with_owner(moved(text, limit, keys), runs, keys)


def with_limit(text: str, limit: Limit, runs: str = RECORDED_RUNS, keys: str = "job, run") -> tuple[Values, Values]:
    """Return what is compared (`limited`) and, as VALUE, what messages show."""
    return limited(text, limit, runs, keys), Values(text, "VALUE")


@dataclass(frozen=True, slots=True)
class Rule:
    """Describes an alert rule. Times in s.

    values: the first is compared with `limit`; the others have the same labels and appear in messages (`$values.B`).
    missing: evaluations after which an alert whose row is missing is resolved.
    shows: dashboard uid and panel key; `selects`: variable -> label for the link.
    check: how the person who gets the message sees that it is so. act: what ends it.
    reason: of the limit, for docs/reference/alerts.md. job_limit: the limit that a job may have of its own.
    escalate: who helps, where it is not the group's.
    opens_rank: the link opens the dashboard of the label `rank`, unless that is `all`.
    guide: template of the path of the web page's section about the cause; "" = there is one for the rule alone.
    level: template of the present severity, where that may rise; the label `severity` is a column of the first values.
    """

    uid: str
    title: str
    severity: Literal["warning", "critical"]
    values: tuple[Values, ...]
    compare: Compare
    limit: tuple[float, ...]
    range_s: int
    summary: str
    description: str
    check: str
    act: str
    reason: str
    shows: tuple[str, str]
    selects: Mapping[str, str] = field(default_factory=dict)
    for_s: int = 0
    keep_s: int = 0
    missing: int = 2
    no_data: NoData = "OK"
    until_s: int = 0
    job_limit: Limit | None = None
    opens_rank: bool = False
    escalate: str = ""
    level: str = ""
    guide: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Holds rules that are evaluated together, every `interval_s`. `escalate`: who helps the person paged."""

    name: str
    interval_s: int
    escalate: str
    rules: tuple[Rule, ...]


#: Sentence on where the rank of an alert runs; nothing where that is not known.
PLACE = '{{ if ne $labels.pod "none" }}Pod or Slurm job: {{ $labels.pod }}. {{ end }}'
#: Sentence on an alert that names no rank.
NO_RANK = '{{ if eq $labels.rank "all" }}No rank could be named. {{ end }}'


def with_job(text: str) -> str:
    """Return a text whose commands name the alert's job, as a shell takes it: its quotes are left out."""
    return text.replace("--job JOB", """--job '{{ reReplaceAll "'" "" $labels.job }}'""")


#: refId of the expression that decides.
CONDITION = "CONDITION"


def link(rule: Rule, panel: int) -> str:
    """Return the address of the panel, with the job, run or host of the alert chosen.

    Twice `urlquery`: a variable's value is an encoded name (model.encoded), and a URL encodes the value.
    An annotation does not know when the alert began; the message adds the time (provisioning/contacts.py).
    """
    chosen = "".join(
        f"&var-{name}={{{{ $labels.{label} | urlquery | urlquery }}}}" for name, label in rule.selects.items()
    )
    place = f"{rule.shows[0]}?viewPanel={panel}"
    if rule.opens_rank:
        rank = "drumline-rank?var-rank={{ $labels.rank | urlquery | urlquery }}"
        place = f'{{{{ if eq $labels.rank "all" }}}}{place}{{{{ else }}}}{rank}{{{{ end }}}}'
    return f"{{{{ externalURL }}}}d/{place}{chosen}"
