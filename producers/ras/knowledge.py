"""Texts of what RAS states of each communicator, as the column `ras_json` of gpu.progress.v1 has them. Pure.

RAS counts the calls of each rank. In a job that stands still they do not change: who has called less than another of
its communicator is behind. Who called as much, but other functions, is not.
Any program may answer at RAS's port: texts and numbers are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from drumline.producers.derive.nccl.kernel_names import hash_text
from drumline.producers.ras.report import RasCommunicator, RasRank, RasReport
from drumline.schemas.bounds.limits import RAS_ANSWERS

#: Ranks of a communicator that are named, of each kind: who reads it needs some, and their number.
MOST_NAMED = 8
#: Communicators of an answer: NCCL's plugin follows fewer of a process.
MOST_COMMUNICATORS = 256
#: Characters of the name of a host and of a function.
MOST_NAME = 64
#: Characters of all texts of an answer: a process states them again every second or two.
MOST_CHARACTERS = 1 << 18
#: Largest number of a process, of Linux.
MOST_PID = 1 << 22


def is_about(report: RasReport, pids: Collection[int]) -> bool:
    """Return whether one of these processes, by the numbers that they have where they run, is in an answer."""
    return any(rank.pid in pids for communicator in report.communicators for rank in communicator.ranks)


def texts_of(report: RasReport) -> dict[str, str]:
    """Return what is stated of each communicator, by the text of its hash.

    Those whose ranks all answer, and called as much, are left out.
    """
    texts: dict[str, str] = {}
    left = MOST_CHARACTERS
    for communicator in report.communicators[:MOST_COMMUNICATORS]:
        known = _stated(communicator)
        if known and (name := _name(communicator)):
            text = json.dumps({"ranks": communicator.size, **known}, separators=(",", ":"))
            if len(text) <= min(left, RAS_ANSWERS.length):
                texts[name], left = text, left - len(text)
    return texts


def _name(communicator: RasCommunicator) -> str:
    """Return the text of a communicator's hash, the first part of what RAS names; "" for another text."""
    try:
        return hash_text(int(communicator.name.partition(":")[0], 16) & ((1 << 64) - 1))
    except ValueError:
        return ""


def _stated(communicator: RasCommunicator) -> dict[str, Any]:
    known_ranks = [rank for rank in communicator.ranks if _is_possible(rank, communicator)]
    missing = [rank for rank in communicator.missing if _is_possible(rank, communicator)]
    first = max(known_ranks, key=lambda rank: rank.called, default=None)
    silent = [_place(rank, state="gone" if rank.exited else "silent") for rank in missing]
    behind = [_behind(rank, first) for rank in known_ranks if first and rank.called < first.called]
    known: dict[str, Any] = {}
    for name, ranks in (("silent", silent), ("behind", behind)):
        if ranks:
            known |= {name: ranks[:MOST_NAMED], f"{name}_ranks": len(ranks)}
    return known


def _is_possible(rank: RasRank, communicator: RasCommunicator) -> bool:
    return 0 <= rank.rank < communicator.size and 0 <= rank.pid <= MOST_PID


def _name_of(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:MOST_NAME])


def _place(rank: RasRank, **known: str | int) -> dict[str, str | int]:
    return {"rank": rank.rank, "host": _name_of(rank.host), "pid": rank.pid, **known}


def _behind(rank: RasRank, first: RasRank) -> dict[str, str | int]:
    """Return a rank, and the function of which it called least of what the one that called most has."""
    calls = dict(rank.counts)
    _, name, of = max((of - calls.get(name, 0), name, of) for name, of in first.counts)
    return _place(rank, operation=_name_of(name), called=calls.get(name, 0), of=of, total=rank.called)
