"""The thresholds of gpu.hang.v1: what counts as standing still, and as hung."""

from __future__ import annotations

from dataclasses import dataclass

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class HangConfig:
    """Holds the thresholds of one worker. Times are ns."""

    #: A job stands still when none of its ranks has called or ended an operation, or begun a step, for this long. Steps
    #: of recorded jobs take up to some seconds, and each has many operations; who is paged has the reason sooner.
    standing_ns: int = 10 * SECOND_NS
    #: It is hung, which pages, when ranks have waited for this long (DRUMLINE_STREAM__HUNG_S). Rank 0 often writes a
    #: checkpoint or evaluates alone, for a minute or two; PyTorch ends a collective after 10 minutes.
    hung_ns: int = 120 * SECOND_NS
    #: A process is silent when its agent, which publishes every 1 or 2 s, has sent nothing for this long, without lag.
    silent_ns: int = 15 * SECOND_NS
    #: A run is not evaluated until its records of some rounds are read: by a worker that has just begun.
    join_ns: int = 4 * SECOND_NS
    #: A job whose processes are all silent for this long is over.
    over_ns: int = 60 * SECOND_NS
    #: A job that stands still and is ended keeps its reason while its processes end. They have 30 s from SIGTERM to
    #: SIGKILL by torchrun, Slurm (KillWait) and Kubernetes; whoever waits for an ended one for longer has that reason.
    ending_ns: int = 30 * SECOND_NS
    #: State of a run that is silent for this long is deleted.
    forget_ns: int = 3_600 * SECOND_NS
    #: A result that is not acknowledged is returned again after this: well above Kafka's time to acknowledge.
    resend_ns: int = 30 * SECOND_NS
    #: Ranks that a result names at most; who reads it needs some of them, and their number.
    most_named: int = 64
