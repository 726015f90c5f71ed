"""The options of `drumline exporter`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExporterOptions:
    """Holds what a person chose.

    Attributes:
        worst: ranks of a run that have series of their own, the worst first.
        series: most series about jobs, ranks and GPUs.
        expire_s: time after its newest window until a run has no series; s.
        has_losses: read the samples of GPUs too, which show that one does not answer.
        otlp: http(s)://host:port of an OpenTelemetry Collector; empty = none.
        otlp_s: interval of the metrics sent to it; s.
        otlp_token: bearer token that it wants; empty = none.
        has_spans: send a span of each request of an inference engine whose caller's trace is sampled, by OTLP.
        nvsentinel: socket of NVSentinel's platform connector; None = no events.
        nvsentinel_acts: NVSentinel may act on events; else it only stores them.
    """

    worst: int = 32
    series: int = 4_500
    expire_s: float = 600.0
    has_losses: bool = True
    otlp: str = ""
    otlp_s: float = 30.0
    otlp_token: str = ""
    has_spans: bool = True
    nvsentinel: Path | None = None
    nvsentinel_acts: bool = False
