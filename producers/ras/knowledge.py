"""Texts of what RAS states of each communicator, as the column `ras_json` of gpu.progress.v1 has them. Pure.

RAS counts the calls of each rank. In a job that stands still they do not change: who has called less than another of
its communicator is behind. Who called as much, but other functions, is not.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from drumline.producers.derive.nccl.kernel_names import hash_text
from drumline.producers.ras.report import RasCommunicator, RasRank, RasReport

#: Ranks of a communicator that are named, of each kind: who reads it needs some, and their number.
MOST_NAMED = 8
#: Communicators of an answer: NCCL's plugin follows fewer of a process.
MOST_COMMUNICATORS = 256
#: Characters of a host's name.
MOST_HOST = 256


def is_about(report: RasReport, pids: Collection[int]) -> bool:
    """Return whether one of these processes, by the numbers that they have where they run, is in an answer."""
    return any(rank.pid in pids for communicator in report.communicators for rank in communicator.ranks)


def texts_of(report: RasReport) -> dict[str, str]:
    """Return what is stated of each communicator, by the text of its hash.

    Those whose ranks all answer, and called as much, are left out.
    """
    texts: dict[str, str] = {}
    for communicator in report.communicators[:MOST_COMMUNICATORS]:
        known = _stated(communicator)
        if known and (name := _name(communicator)):
            texts[name] = json.dumps({"ranks": communicator.size, **known}, separators=(",", ":"))
    return texts


def _name(communicator: RasCommunicator) -> str:
    """Return the text of a communicator's hash, the first part of what RAS names; "" for another text."""
    try:
        return hash_text(int(communicator.name.partition(":")[0], 16) & ((1 << 64) - 1))
    except ValueError:
        return ""


def _stated(communicator: RasCommunicator) -> dict[str, Any]:
    first = max(communicator.ranks, key=lambda rank: rank.called, default=None)
    silent = [_place(rank, state="gone" if rank.exited else "silent") for rank in communicator.missing]
    behind = [_behind(rank, first) for rank in communicator.ranks if first and rank.called < first.called]
    known: dict[str, Any] = {}
    for name, ranks in (("silent", silent), ("behind", behind)):
        if ranks:
            known |= {name: ranks[:MOST_NAMED], f"{name}_ranks": len(ranks)}
    return known


def _place(rank: RasRank, **known: str | int) -> dict[str, str | int]:
    return {"rank": rank.rank, "host": rank.host[:MOST_HOST], "pid": rank.pid, **known}


def _behind(rank: RasRank, first: RasRank) -> dict[str, str | int]:
    """Return a rank, and the function of which it called least of what the one that called most has."""
    calls = dict(rank.counts)
    _, name, of = max((of - calls.get(name, 0), name, of) for name, of in first.counts)
    return _place(rank, operation=name, called=calls.get(name, 0), of=of)
