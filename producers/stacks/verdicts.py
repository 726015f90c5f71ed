"""Parts of a verdict that ask for a sampling: the ranks it names, and the peer that each of them is compared with.

Every agent reads the same record, and each decides by the record alone, so they agree without talking to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from drumline.infra.guidance.causes import HOST_STALL, UNKNOWN
from drumline.schemas.batch import Batch
from drumline.schemas.control import SUSPECTED_OF, compared_ranks, healthy_peer, odds_of
from drumline.schemas.topics import Topic

#: Severity from which a rank is sampled; a test holds it equal to the stream processor's.
WARNING = 2
#: Most ranks of a record that are sampled as culprits: those that cost most. A mismatch names two.
MOST_NAMED = 2
#: Reason of a hang that names a process which has exited.
EXITED = "gone"
#: Ranks of which the peer of a hang is chosen, the lowest ones.
MOST_RANKS = 1 << 16
#: Kinds: of verdicts, of a rank that evidence does not name yet, and of a deep window that people ask for.
STRAGGLER, HANG, SUSPECT, CAPTURE = "straggler", "hang", "suspect", "capture"
#: Causes that stacks may show.
SHOWN_BY_STACKS = frozenset({HOST_STALL, UNKNOWN})
#: In the evidence of a rank of a pipeline without replicas: each of its stages runs other lines by design.
OF_STAGES = '"pipeline"'
#: Longest step of a job whose suspects are sampled: each part of a sampling holds one (sampling_run.py); ns.
LONGEST_STEP_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ranks that one record names. That of a window names none where it is about all: then `of_all` is set.

    `at_s`: when Kafka took the record; s since the epoch. `named`: ranks, those that cost most first. `peer`: the rank
    for comparison, -1 = none. `odds`, `step_ns`: of a suspect rank. `requesting`: of a job that stands still, those
    whose hosts request what NCCL's RAS knows.
    """

    kind: str
    job: str
    run: str
    at_s: float
    named: tuple[int, ...]
    peer: int
    first_step: int = -1
    last_step: int = -1
    window_start_ns: int = 0
    of_all: bool = False
    odds: float = 0.0
    step_ns: int = 0
    requesting: tuple[int, ...] = ()


def straggler(batch: Batch, at_s: float) -> Verdict | None:
    """Return what a record of gpu.straggler.v1 asks for, None for nothing."""
    envelope, columns = batch.envelope, batch.columns
    ranks, severities = columns["rank"].tolist(), columns["severity"].tolist()
    costs, hosts = columns["lost_ns"].tolist(), batch.strings("host", "hosts").tolist()
    causes = batch.strings("cause", "causes").tolist()
    late = [
        (-cost, rank, at)
        for at, (rank, severity, cost, cause) in enumerate(zip(ranks, severities, costs, causes, strict=True))
        if rank >= 0 and severity >= WARNING and cause == HOST_STALL
    ]
    if not late:
        return suspect(batch, at_s)
    late.sort()
    worst = late[0][2]
    group = compared_ranks(batch.strings("evidence_json", "evidence")[worst])
    named = tuple(rank for _, rank, _ in late[:MOST_NAMED])
    healthy = [(rank, host) for rank, severity, host in zip(ranks, severities, hosts, strict=True) if severity == 0]
    return Verdict(
        STRAGGLER, str(envelope["job"]), str(envelope["run"]), at_s, named, healthy_peer(healthy, hosts[worst], group),
        int(envelope["first_step"]), int(envelope["last_step"]), int(envelope["window_start_ns"]),
    )  # fmt: skip


def suspect(batch: Batch, at_s: float) -> Verdict | None:
    """Return the rank of a record that is named soonest, if stacks may show why it is late; None without one."""
    envelope, columns = batch.envelope, batch.columns
    step_ns = int(envelope["step_ns"])
    if step_ns > LONGEST_STEP_NS:
        return None
    texts = batch.strings("evidence_json", "evidence").tolist()
    ranks, severities = columns["rank"].tolist(), columns["severity"].tolist()
    hosts = batch.strings("host", "hosts").tolist()
    suspects = [
        (-odds, rank, at)
        for at, rank in enumerate(ranks)
        if rank >= 0
        and severities[at] == 0
        and (odds := odds_of(texts[at], SHOWN_BY_STACKS)) > 0
        and OF_STAGES not in texts[at]
    ]
    healthy = [
        (rank, host)
        for rank, severity, host, text in zip(ranks, severities, hosts, texts, strict=True)
        if severity == 0 and SUSPECTED_OF not in text
    ]
    if not suspects:
        return None
    least, rank, at = min(suspects)
    peer = healthy_peer(healthy, hosts[at], compared_ranks(texts[at]))
    if peer < 0:
        return None
    return Verdict(
        SUSPECT, str(envelope["job"]), str(envelope["run"]), at_s, (rank,), peer, int(envelope["first_step"]),
        int(envelope["last_step"]), int(envelope["window_start_ns"]), odds=-least, step_ns=step_ns,
    )  # fmt: skip


def hang(batch: Batch, at_s: float) -> Verdict | None:
    """Return what a record of gpu.hang.v1 asks for, None for nothing: its rows are the ranks that it names.

    RAS is requested where those are that it names, and the first and the last of the others: both sides of a link that
    is cut, and not on thousands of hosts, since each request goes to all processes of the job.
    """
    envelope = batch.envelope
    if envelope["state"] not in ("standing", "hung"):
        return None
    reasons = batch.strings("reason", "reasons").tolist()
    ranks = zip(batch.columns["rank"].tolist(), reasons, strict=True)
    listed = sorted({rank for rank, reason in ranks if rank >= 0 and reason not in ("", EXITED)})
    named, ranks_of_job = set(listed), range(min(int(envelope["world_size"]), MOST_RANKS))
    peer = next((rank for rank in ranks_of_job if rank not in named), -1)
    last = next((rank for rank in reversed(ranks_of_job) if rank not in named), -1)
    requesting = (*listed[:MOST_NAMED], *dict.fromkeys(rank for rank in (peer, last) if rank >= 0))
    return Verdict(
        HANG, str(envelope["job"]), str(envelope["run"]), at_s, tuple(listed[:MOST_NAMED]), peer,
        window_start_ns=int(envelope["start_ns"]), requesting=requesting,
    )  # fmt: skip


#: Topic -> what its records ask for.
READERS: Mapping[str, Callable[[Batch, float], Verdict | None]] = MappingProxyType(
    {Topic.STRAGGLER: straggler, Topic.HANG: hang}
)
