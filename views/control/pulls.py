"""Pulls as `drumline pull` asks for them, and the answers of the agents that keep the rows. Pure but queries."""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from drumline.schemas.control import MAX_PULL_NS, PULL, Control, exact
from drumline.views.control.control_topic import user_name
from drumline.views.report.data import Query, Row

RUNNING, DONE, REJECTED = "running", "done", "rejected"
#: Answer of a host that has no process of the rank: it ends nothing.
FOREIGN = "foreign"
#: The agents' answers to a pull: the newest of each host.
ANSWERS = """
SELECT host, mapFilter((name, text) -> startsWith(name, {pull:String}), collector) AS answers FROM processes
WHERE job = '' AND rank = -1 AND notEmpty(answers) ORDER BY start
"""
#: Hosts of each rank: the agent of another one has none of its rows.
HOSTS = """
SELECT rank, groupUniqArray(host) AS hosts FROM processes
WHERE job = {job:String} AND run = {run:String} AND rank >= 0 AND pid > 0 GROUP BY rank ORDER BY rank
"""


class BadSteps(ValueError):
    """A text that names no steps; the message has an example."""


@dataclass(frozen=True)
class RankAnswer:
    """Holds what an agent answered for a rank. `answer`: running, done, rejected or foreign. `text`: for people."""

    rank: int
    host: str
    answer: str
    text: str

    def as_row(self) -> Row:
        """Return it as `drumline pull --json` prints it."""
        return {"rank": self.rank, "host": self.host, "answer": self.answer, "text": self.text}


def steps_of(text: str) -> tuple[int, int]:
    """Return the first and the last step of "100-119", or of the older "100:119". Raises BadSteps."""
    match = re.fullmatch(r"\s*(\d{1,15})\s*(?:[-:]\s*(\d{1,15})\s*)?", text)
    if match is None:
        raise BadSteps(f"{text!r} names no steps; for example: 100-119, or 100")
    return int(match[1]), int(match[2] or match[1])


def pull_of(job: str, run: str, ranks: Sequence[int], steps: tuple[int, int], now_ns: int) -> Control:
    """Return the request for kept rows. Raises BadControl."""
    return Control(
        key=f"pull-{secrets.token_hex(4)}", kind=PULL, policy="", job=exact(job), run=run, ranks=tuple(ranks),
        first_step=steps[0], last_step=steps[1], start_ns=now_ns, until_ns=now_ns + MAX_PULL_NS // 2,
        requested_by=user_name(), requested_ns=now_ns,
    ).checked()  # fmt: skip


def answers(query: Query, pull: Control, hosts: Mapping[int, Collection[str]]) -> list[RankAnswer]:
    """Return the answers so far, by rank, of agents that may answer. `hosts`: of each rank, see HOSTS."""
    prefix = f"{pull.key} rank "
    newest: dict[int, RankAnswer] = {}
    foreign: dict[int, RankAnswer] = {}
    for row in query(ANSWERS, {"pull": prefix}):
        for name, text in _texts(row["answers"]).items():
            answer, _, rest = text.partition(": ")
            number = name.removeprefix(prefix)
            rank = int(number) if re.fullmatch(r"\d{1,7}", number) else -1
            if answer not in (RUNNING, DONE, REJECTED) or rank not in hosts:
                continue
            if row["host"] in hosts[rank]:
                newest[rank] = RankAnswer(rank, str(row["host"]), answer, rest)
            else:
                text = f"its processes are on {', '.join(sorted(hosts[rank]))}: give jobs and agent one DRUMLINE_HOST"
                foreign[rank] = RankAnswer(rank, str(row["host"]), FOREIGN, text)
    return [answer for _, answer in sorted((foreign | newest).items())]


def _texts(value: Mapping[str, str] | Sequence[tuple[str, str]]) -> dict[str, str]:
    return {str(name): str(text) for name, text in dict(value).items()}


def are_complete(given: Sequence[RankAnswer], ranks: Collection[int]) -> bool:
    """Return whether every rank has its last answer."""
    return {answer.rank for answer in given} >= set(ranks) and all(
        answer.answer in (DONE, REJECTED) for answer in given
    )
