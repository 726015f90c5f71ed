"""Statements of NCCL's RAS on a job that stands still, joined to what its progress shows. Pure.

RAS knows of each communicator who does not answer, and who has called less than others. A link that is cut makes either
side silent for the other. So the host is stated on which RAS was read. A rank is named only if nothing else is known.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from drumline.streams.hangs.named_ranks import NamedRank, Reason, Standstill
from drumline.streams.hangs.snapshot import ProcessProgress
from drumline.streams.hangs.waiting import UNNAMED

#: Statements that a note holds, and most hosts of one.
MOST_STATED, MOST_HOSTS = 4, 2
#: Kind of a statement (gpu.progress.v1, ras_json) -> reason of a rank that it alone shows.
_REASONS = {"gone": Reason.ENDED, "silent": Reason.SILENT, "behind": Reason.NOT_CALLED}


class RasStatement(NamedTuple):
    """Holds what RAS states of one rank: that it is silent, gone or behind.

    `comm_rank`: in the communicator, `rank`: of the job, -1 = not known. `calls`: how far behind, as text.
    `total`: its calls of all functions, -1 = not known.
    """

    communicator: str
    comm_rank: int
    kind: str
    rank: int
    place: str
    calls: str
    total: int = -1


def informed(
    explanation: Standstill, known: Sequence[ProcessProgress], silent: Iterable[ProcessProgress], world_size: int
) -> Standstill:
    """Return an explanation with what RAS states. `silent`: processes that were known, and are silent."""
    stated = _statements(known, world_size)
    if not stated:
        return explanation
    notes = tuple(_sentence(statement, stated[statement]) for statement in list(stated)[:MOST_STATED])
    if len(stated) > MOST_STATED:
        notes += (f"It states as much of {len(stated) - MOST_STATED} more.",)
    explanation = replace(explanation, notes=(*explanation.notes, *notes))
    named = tuple(_named(explanation, stated, known, silent))
    return replace(explanation, named=named, reason=named[0].reason) if named else explanation


def _statements(known: Sequence[ProcessProgress], world_size: int) -> dict[RasStatement, list[str]]:
    """Return what is stated, in a fixed order, with the hosts on which RAS was read."""
    ranks = {
        (row.communicator, row.comm_rank): process.rank
        for process in known
        for row in process.progress()
        if row.peer < 0
    }
    differing = {name for (name, comm_rank), rank in ranks.items() if comm_rank != rank}
    stated: dict[RasStatement, set[str]] = defaultdict(set)
    for process in known:
        for row in process.progress():
            is_world = row.ranks == world_size and row.communicator not in differing
            for kind, comm_rank, place, calls, total in _entries(row.ras_json):
                rank = ranks.get((row.communicator, comm_rank), comm_rank if is_world else -1)
                if 0 <= comm_rank < row.ranks and rank < world_size:
                    statement = RasStatement(row.communicator, comm_rank, kind, rank, place, calls, total)
                    stated[statement].add(process.host)
    return {statement: sorted(stated[statement]) for statement in sorted(stated)}


def _entries(text: str) -> Iterator[tuple[str, int, str, str, int]]:
    """Yield kind, rank in the communicator, process, calls and total. Whoever writes a record may write any text."""
    try:
        values = json.loads(text) if text else {}
        for name in ("silent", "behind"):
            for entry in values.get(name, []):
                place = f"pid {_number(entry['pid'])} on {_text(entry['host'])}"
                total = _number(entry.get("total", -1)) if name == "behind" else -1
                yield _kind(name, entry), _number(entry["rank"]), place, _calls(name, entry), total
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, RecursionError):
        return


def _number(value: Any) -> int:
    """Return a number of 63 bits. Raises OverflowError, TypeError, ValueError for another value."""
    number = int(value)
    if abs(number) >= 1 << 62:
        raise ValueError("no count")
    return number


def _text(value: Any) -> str:
    return "".join(character if character.isprintable() else "?" for character in str(value)[:64])


def _kind(name: str, entry: Mapping[str, Any]) -> str:
    return "gone" if name == "silent" and entry.get("state") == "gone" else name


def _calls(name: str, entry: Mapping[str, Any]) -> str:
    if name != "behind":
        return ""
    return f"{_number(entry['called'])} of {_number(entry['of'])} {_text(entry['operation'])}"


def _sentence(statement: RasStatement, hosts: Sequence[str]) -> str:
    where = " and ".join(hosts[:MOST_HOSTS]) + (f" and {len(hosts) - MOST_HOSTS} more" if hosts[MOST_HOSTS:] else "")
    rank = f"rank {statement.rank}" if statement.rank >= 0 else f"its rank {statement.comm_rank}"
    news = {
        "gone": f"has given up {rank}",
        "silent": f"gets no answer of {rank}",
        "behind": f"counts {statement.calls} of {rank}",
    }[statement.kind]
    return f"NCCL's RAS on {where} {news} ({statement.place}) in communicator {statement.communicator}."


def _named(
    explanation: Standstill, stated: Iterable[RasStatement], known: Sequence[ProcessProgress],
    silent: Iterable[ProcessProgress],
) -> Iterator[NamedRank]:  # fmt: skip
    """Yield the ranks that RAS alone shows, of the operation that others wait in, the most telling first."""
    row = explanation.row
    if explanation.reason is not Reason.INSUFFICIENT or row is None or row.communicator == UNNAMED:
        return
    known_ranks = {process.rank for process in known}
    before = {process.rank: process for process in silent}
    order = list(Reason)
    for statement in sorted(stated, key=lambda stated: (order.index(_REASONS[stated.kind]), stated.rank)):
        if statement.kind == "behind" and not 0 <= statement.total < explanation.number:
            continue  # it has called the operation, or that is not known
        if statement.communicator == row.communicator and statement.rank >= 0 and statement.rank not in known_ranks:
            known_ranks.add(statement.rank)
            process = before.get(statement.rank) or ProcessProgress(statement.rank, "", "", 0, "running", 0, 0, b"")
            yield NamedRank(process, _REASONS[statement.kind], row, explanation.number, explanation.waiting)
