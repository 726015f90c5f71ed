"""Notices about hosts that are at fault again: which are due, and what they state. No I/O."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

#: Kinds of faults that need no repetition: the hardware states them itself.
CERTAIN = frozenset({"lost", "check"})
#: A lost GPU has a row every 10 s: after a longer gap than this it was back, or nobody looked; ns.
LOSS_GAP_NS = 5 * 60 * 1_000_000_000
#: Namespace of the ids of notices.
_IDS = uuid.UUID("6f3f7c5e-0d1b-5d0c-9a35-0c7c1e4f5b11")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, as the view `faults` has it. Times are ns since the epoch."""

    host: str
    gpu_uuid: str
    job: str
    run: str
    kind: str
    name: str
    first_ns: int
    last_ns: int
    gpu_seconds_lost: float

    @property
    def key(self) -> str:
        """Return what counts once: the run, but in it each certain fault apart; without a job the fault and its day."""
        if self.job:
            run = f"run {json.dumps([self.job, self.run])}"
            return f"{self.kind} {self.name} {self.gpu_uuid} {run}" if self.kind in CERTAIN else run
        return f"{self.kind} {self.name} {self.gpu_uuid} {_text(self.first_ns)[:10]}"


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice. `faults`: keys of those that are new in it. `body`: the JSON object that is sent, always the same."""

    id: str
    host: str
    faults: tuple[str, ...]
    body: str


@dataclass(frozen=True, slots=True)
class DueLimits:
    """Limits from which a host is due.

    Attributes:
        runs: new runs in which it was at fault; a fault that is CERTAIN needs none.
        days: age up to which faults count.
    """

    runs: int
    days: int


def due(
    faults: Iterable[Fault],
    runs_of: Mapping[str, int],
    serials: Mapping[str, str],
    covered: Mapping[str, Collection[str]],
    limits: DueLimits,
    since_ns: int = 0,
) -> list[Notice]:
    """Return the notices that are due.

    `faults`: all of the last days, and older losses, which may last still. `since_ns`: begin of these days.
    `runs_of`: runs that used each host in that time. `serials`: by UUID of the GPU.
    `covered`: keys of the faults that notices about each host had already.
    """
    by_host: dict[str, list[Fault]] = {}
    for fault in _one_per_loss(faults):
        if fault.last_ns < since_ns:
            continue
        by_host.setdefault(fault.host, []).append(fault)
    notices = []
    for host, host_faults in sorted(by_host.items()):
        new = [fault for fault in host_faults if fault.key not in covered.get(host, ())]
        if _runs(new) >= limits.runs or any(fault.kind in CERTAIN for fault in new):
            keys = tuple(sorted({fault.key for fault in new}))
            number = str(uuid.uuid5(_IDS, "\n".join((host, *keys))))
            body = _body(number, host_faults, runs_of.get(host, 0), serials, limits)
            notices.append(Notice(number, host, keys, json.dumps(body)))
    return notices


def _one_per_loss(faults: Iterable[Fault]) -> list[Fault]:
    """Join the rows of one loss: those with the job that it took along, and then one a day without a job."""
    result: list[Fault] = []
    heads: dict[tuple[str, str], int] = {}
    ends: dict[tuple[str, str], int] = {}
    for fault in sorted(faults, key=lambda fault: (fault.first_ns, not fault.job)):
        if fault.kind == "lost":
            gpu = (fault.host, fault.gpu_uuid)
            goes_on = gpu in ends and not fault.job and fault.first_ns - ends[gpu] <= LOSS_GAP_NS
            ends[gpu] = max(ends.get(gpu, 0), fault.last_ns)
            if goes_on:
                result[heads[gpu]] = replace(result[heads[gpu]], last_ns=ends[gpu])
                continue
            heads[gpu] = len(result)
        result.append(fault)
    return result


def _body(
    number: str, faults: Sequence[Fault], runs: int, serials: Mapping[str, str], limits: DueLimits
) -> dict[str, Any]:
    host, count = faults[0].host, len({fault.key for fault in faults})
    gpus = [
        {"gpu_uuid": gpu, "serial": serials.get(gpu, ""), **_summary([f for f in faults if f.gpu_uuid == gpu])}
        for gpu in sorted({fault.gpu_uuid for fault in faults})
    ]
    times = f"{count} time{'' if count == 1 else 's'} in {runs} job{'' if runs == 1 else 's'}"
    return {
        "type": "host.at_fault",
        "id": number,
        "text": f"host {host} was at fault {times} of the last {limits.days} days",
        "host": host,
        "faults": count,
        "runs": runs,
        "days": limits.days,
        **_summary(faults),
        "gpu_seconds_lost": round(sum(fault.gpu_seconds_lost for fault in faults), 1),
        "first_time": _text(min(fault.first_ns for fault in faults)),
        "last_time": _text(max(fault.last_ns for fault in faults)),
        "gpus": gpus,
    }


def _runs(faults: Iterable[Fault]) -> int:
    return len({(fault.job, fault.run) for fault in faults if fault.job})


def _summary(faults: Sequence[Fault]) -> dict[str, Any]:
    def names_of(kind: str) -> list[str]:
        return sorted({fault.name for fault in faults if fault.kind == kind})

    return {
        "faulty_runs": _runs(faults),
        "causes": names_of("verdict"),
        "xids": sorted(int(number) for number in names_of("xid")),
        "losses": len({fault.key for fault in faults if fault.kind == "lost"}),
        "failed_checks": names_of("check"),
    }


def _text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).isoformat().replace("+00:00", "Z")
