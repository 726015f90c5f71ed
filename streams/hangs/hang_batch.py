"""Conversion of a standstill into a gpu.hang.v1 batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch, dictionary
from drumline.schemas.keys import derived_process_id
from drumline.schemas.topics import Topic
from drumline.streams.core.records import run_key
from drumline.streams.hangs.named_ranks import NamedRank, Reason, StalledLink, Standstill
from drumline.streams.hangs.snapshot import ProgressRow
from drumline.streams.hangs.waiting import UNNAMED

WHOLE_JOB = -1
#: Links that a note names.
MOST_LINKS = 4
#: column -> its dictionary.
_TEXTS = {
    "host": "hosts",
    "gpu_uuid": "gpu_uuids",
    "reason": "reasons",
    "communicator": "communicators",
    "operation": "operations",
    "datatype": "datatypes",
    "note": "notes",
}
_NUMBERS = {"rank": "<i4", "number": "<i8", "elements": "<i8", "bytes": "<i8", "waiting": "<i4", "step": "<i8"}


@dataclass(frozen=True)
class HangRow:
    """Holds a row of gpu.hang.v1."""

    rank: int
    host: str = ""
    gpu_uuid: str = ""
    reason: str = ""
    communicator: str = ""
    operation: str = ""
    datatype: str = ""
    number: int = 0
    elements: int = 0
    bytes: int = 0
    waiting: int = 0
    step: int = -1
    note: str = ""


def standing_rows(explanation: Standstill, most_named: int) -> list[HangRow]:
    """Return the rows of a standstill: the job's, and one for each of at most `most_named` ranks."""
    named, row = explanation.named, explanation.row
    rows = [_row(rank) for rank in named[:most_named]]
    note = " ".join(row.note for row in rows[:4]) if rows else _job_note(explanation)
    if rows and explanation.links:
        note += f" Besides, {_stalled(explanation.links)}."
    if len(named) > 4:
        note += f" {len(named)} ranks are named."
    note = " ".join((note, *explanation.notes))
    known: dict[str, Any] = {} if row is None else _shown(row)
    known |= {"number": explanation.number, "waiting": explanation.waiting}
    return [HangRow(WHOLE_JOB, reason=explanation.reason, note=note, **known), *rows]


def _row(named: NamedRank) -> HangRow:
    process, rows = named.process, named.process.progress()
    return HangRow(
        process.rank, process.host, process.gpu_uuid, named.reason,
        number=named.number, waiting=named.waiting, step=rows[0].step if rows else -1,
        note=f"Rank {process.rank} {_sentence(named)}.", **_shown(named.row),
    )  # fmt: skip


def _shown(row: ProgressRow) -> dict[str, Any]:
    names = ("communicator", "operation", "datatype", "elements", "bytes")
    return {name: getattr(row, name) for name in names}


def _operation(row: ProgressRow, number: int) -> str:
    size = f" of {row.elements:,} {row.datatype}" if row.datatype else ""
    name = f"{row.operation or 'operation'} {number}" if number else row.operation or "an operation"
    ranks = f" ({row.ranks} ranks)" if row.ranks else ""
    return f"{name}{size} in communicator {row.communicator}{ranks}" if row.communicator else name


def _sentence(named: NamedRank) -> str:
    operation = _operation(named.row, named.number)
    peers = "1 rank waits" if named.waiting == 1 else f"{named.waiting} ranks wait"
    if named.row.communicator == UNNAMED and named.reason is Reason.NOT_CALLED:
        return f"has given its GPU nothing to do; {_running(named.waiting)}"
    return {
        Reason.ENDED: f"has ended; {peers} for it in {operation}",
        Reason.STOPPED: f"is stopped by a signal; {peers} for it in {operation}",
        Reason.MISMATCH: f"called {operation}; others called another operation, type or size under that number",
        Reason.DEADLOCK: f"waits in {operation} for a rank that waits for it",
        Reason.NOT_CALLED: f"has not called {operation}; {peers} in it",
        Reason.NOT_STARTED: f"called {operation}, but its GPU is busy and has not begun it; {peers} in it",
        Reason.SILENT: f"does not answer NCCL's RAS; {peers} for it in {operation}",
        Reason.NOT_ENDED: f"does not end {operation}, which others have ended: its GPU or link",
    }[named.reason]


def _running(gpus: int) -> str:
    if gpus == 1:
        return "the GPU of 1 rank does not end what it runs"
    return f"the GPUs of {gpus} ranks do not end what they run"


def _job_note(explanation: Standstill) -> str:
    if explanation.row is None and explanation.links:
        return f"No rank calls an operation of NCCL, and none that is measured is open: {_stalled(explanation.links)}."
    if explanation.row is None:
        return "No rank waits in an operation of NCCL, and none calls one."
    if explanation.row.communicator == UNNAMED:
        running = _running(explanation.waiting)
        return f"{running[0].upper()}{running[1:]}, and more have nothing to do: either may wait for the others."
    operation = _operation(explanation.row, explanation.number)
    if explanation.reason is Reason.INSUFFICIENT and not explanation.row.ranks:
        known = "CUPTI shows neither whether their GPUs have begun it nor who else has to call it"
        return f"{explanation.waiting} ranks wait in {operation}; {known}."
    if explanation.reason is Reason.INSUFFICIENT:
        known = f"the progress of {explanation.known} of its {explanation.ranks} ranks is known"
        stalled = f" Besides, {_stalled(explanation.links)}." if explanation.links else ""
        return f"{explanation.waiting} ranks wait in {operation}; {known}.{stalled}"
    if explanation.reason is Reason.NOT_STARTED:
        return f"All ranks called {operation}; no GPU has begun it."
    if explanation.links:
        return f"All ranks began {operation}, and it does not end: {_stalled(explanation.links)}."
    return f"All ranks began {operation}, and none ends it: {_link(explanation.places)}, or a GPU."


def _stalled(links: Sequence[StalledLink]) -> str:
    """Return the links that deliver nothing, by hosts; those of both directions once."""
    ranks: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for link in links:
        ranks.setdefault((link.host, link.to_host), []).append((link.sender, link.receiver))
    texts = []
    for (host, to_host), pairs in ranks.items():
        back = ranks.get((to_host, host), [])
        if back and host != to_host and (host, to_host) > (to_host, host):
            continue  # it stands at the other direction
        senders, receivers = ([(rank, host) for rank in sorted(set(of))] for of in zip(*pairs, strict=True))
        ends = f"{host} ({_ranks(host, senders)})", f"{to_host} ({_ranks(host, receivers)})"
        texts.append(f"between {' and '.join(ends)}" if back and host != to_host else f"from {' to '.join(ends)}")
    more = f" and {len(texts) - MOST_LINKS} more" if len(texts) > MOST_LINKS else ""
    s, do = ("", "s") if len(texts) == 1 else ("s", "")
    named = f"the link{s} {', '.join(texts[:MOST_LINKS])}{more}"
    return f"{named} deliver{do} nothing, since what was sent is not acknowledged"


def _link(places: Sequence[tuple[int, str]]) -> str:
    """Return the link between two hosts, or two ranks, where an operation has no others."""
    hosts = sorted({host for _, host in places})
    if len(hosts) == 2:
        return "the link between " + " and ".join(f"{host} ({_ranks(host, places)})" for host in hosts)
    return f"the link between ranks {places[0][0]} and {places[1][0]}" if places else "a link"


def _ranks(host: str, places: Sequence[tuple[int, str]]) -> str:
    """Return the ranks of a host, of many the first and the last."""
    ranks = [rank for rank, of in places if of == host]
    if len(ranks) > 4:
        return f"ranks {ranks[0]} to {ranks[-1]}" if ranks[-1] - ranks[0] < len(ranks) else f"{len(ranks)} ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def hang_batch(rows: Sequence[HangRow], envelope: dict[str, Any]) -> Batch:
    """Return the batch of rows. `envelope`: job, run, state, episode, revision, sequence and times."""
    texts = {name: dictionary(getattr(row, name) for row in rows) for name in _TEXTS}
    columns = {name: np.array(texts[name][1], "<u4") for name in _TEXTS}
    columns |= {name: np.array([getattr(row, name) for row in rows], dtype) for name, dtype in _NUMBERS.items()}
    dictionaries = {_TEXTS[name]: strings for name, (strings, _) in texts.items()}
    run_name = run_key(envelope["job"], envelope["run"], envelope["attempt_start_ns"])
    process = derived_process_id(Topic.HANG, run_name)
    return Batch(Topic.HANG, {**envelope, "process_id": process, "rows": len(rows), **dictionaries}, columns)


def digest(state: str, rows: Sequence[HangRow]) -> str:
    """Return a hash of a result without its times and revision."""
    return hashlib.blake2b(repr((state, rows)).encode(), digest_size=16).hexdigest()
