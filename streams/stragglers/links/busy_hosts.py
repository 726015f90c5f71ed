"""Collectives that are slow because processes wait for a CPU, not for a link. Pure.

A slow link keeps nobody waiting for a CPU. Threads that move data over sockets do need one, on every host, so
where hosts lack CPU all flows vary at once. What is slow then has no place, and says nothing about the network.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.host_cause import ProcessSamples
from drumline.streams.stragglers.analysis.slow_link import SlowLink
from drumline.streams.stragglers.analysis.verdict_rows import SamplesOf
from drumline.streams.stragglers.analysis.window_data import Ints
from drumline.streams.stragglers.links.extent import ALL_FLOWS, SEVERAL_FLOWS

#: Ranks whose samples are read: a median of as many is as good as that of thousands.
READ = 32
#: Part of these that have to be known.
KNOWN = 0.5
#: Part of the time for which hosts lack CPU, whatever was lost: in a ring each rank's data waits for the threads of all
#: others in turn, so the job loses more than any rank waits. With 35 busy processes a core eight ranks lost 52 to 67 %
#: and waited for 25 to 37 %, before and afterwards for 4 to 15 %.
LACKS = 0.2


def with_cpu_wait(
    link: SlowLink | None, ranks: Ints, processes: SamplesOf | None, config: StragglerConfig
) -> SlowLink | None:
    """Return a slow link that has no place with the waiting for a CPU that explains it; others as they are.

    It does where the median rank waited for a CPU for as much of the time as `config.cause_share` of what was lost, or
    for LACKS. A flow, a device or a host that is slower than others is a slow link all the same.
    """
    if link is None or processes is None or (link.flows and link.flows.extent.detail not in (ALL_FLOWS, SEVERAL_FLOWS)):
        return link
    read = ranks[np.unique(np.linspace(0, len(ranks) - 1, min(READ, len(ranks))).astype(int))].tolist()
    shares = [ProcessSamples(processes(rank)).rate(("main_wait_ns", "most_wait_ns"), 1.0) for rank in read]
    known = [share for share in shares if share >= 0.0]
    waited = median(known) if len(known) >= KNOWN * len(read) else 0.0
    is_explained = waited >= min(config.cause_share * link.share, LACKS)
    return replace(link, cpu_wait=round(waited, 4)) if is_explained else link
