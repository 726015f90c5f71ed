"""The reason that the same work takes a rank longer: its GPU's samples against its peers' (gpu.device.v1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from statistics import median, median_low  # of some samples: 10 times as fast as NumPy's

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.record_table import RecordTable
from drumline.streams.core.records import Rows
from drumline.streams.core.thresholds import StragglerConfig

#: Columns that verdicts use; -1 = not supported.
SAMPLED = ("sm_clock", "throttle_reasons", "processes", "ecc_uncorrected", "xid", "util_gpu", "job_util_sm")
SAMPLE_ROW = np.dtype([("time_ns", "<i8"), *((name, "<i4") for name in SAMPLED)])
_MOST = {name: np.iinfo(SAMPLE_ROW[name]).max for name in SAMPLE_ROW.names or ()}
#: NVML clock event reasons that slow a GPU down (nvml.h, nvmlClocksEventReason*).
REASONS = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
#: Time of a GPU that others use, beyond the peers', from which it is shared; %. A process of others that only holds
#: memory shows up to 13, as NVML takes both readings at other moments (recorded).
SHARED_PERCENT = 20
#: Largest number of peers compared: enough for a median, whatever the size of the job.
PEERS = 16


def sample_rows(table: RecordTable) -> Rows:
    """Return the SAMPLE_ROW rows of gpu.device.v1."""
    rows = np.zeros(table.rows, SAMPLE_ROW)
    for name in SAMPLE_ROW.names or ():
        rows[name] = np.minimum(table.columns[name], _MOST[name])
    return rows


class GpuSamples:
    """Holds the samples of one GPU (SAMPLE_ROW). Each median is computed once: a GPU is the peer of many late ones."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def clock(self) -> float:
        """Return the median SM clock in MHz; -1 = unknown."""
        return _median(self.rows["sm_clock"])

    @cached_property
    def processes(self) -> float:
        """Return the median number of processes; -1 = unknown."""
        return _median(self.rows["processes"])

    @cached_property
    def foreign(self) -> float:
        """Return the time in which the GPU was busy for others, in %, median; -1 = unknown.

        NVML takes both readings at other moments: of two samples that differ, one is odd, and the lower counts.
        """
        rows = self.rows
        exclusive = (rows["processes"] >= 0) & (rows["processes"] <= 1)
        known = exclusive | ((rows["util_gpu"] >= 0) & (rows["job_util_sm"] >= 0))
        used = np.where(exclusive, 0, np.maximum(rows["util_gpu"] - rows["job_util_sm"], 0))
        return float(median_low(used[known].tolist())) if known.any() else -1.0

    def reasons(self, least: float) -> list[str]:
        """Return the REASONS of at least a share of the samples, of those that give any or none."""
        given = self.rows["throttle_reasons"]
        given = given[given >= 0].tolist()
        count = max(1, len(given))
        return [name for bit, name in REASONS.items() if sum((value & bit) != 0 for value in given) / count >= least]


def device_detail(
    samples: GpuSamples, peers: Sequence[GpuSamples], slowdown: float, config: StragglerConfig
) -> tuple[str, dict[str, object]]:
    """Return (detail, evidence) of a rank whose compute takes longer than its peers' for the same work.

    `slowdown`: its compute over its peers' (1.2 = 20% longer). The details, in this order:

    - shared_gpu: see `shared_gpu`. It comes first, since a GPU with more to do reaches its power cap.
    - throttled: the SM clock is lower, by enough to explain the slowdown, and NVML gives a reason that slows it.
    - slow_part: neither, with all of it known, and no other process on the GPU.
    - "": the samples do not decide.
    """
    if not len(samples) or not any(map(len, peers)):
        return "", {}
    clock, peer_clock = samples.clock, _known([peer.clock for peer in peers])
    reasons = samples.reasons(config.reason_share)
    evidence: dict[str, object] = {"sm_clock_mhz": clock, "peers_sm_clock_mhz": peer_clock, "clock_reasons": reasons}
    errors, xids = samples.rows["ecc_uncorrected"].tolist(), samples.rows["xid"].tolist()
    evidence |= {"ecc_uncorrected": max(errors) - min(errors)} if max(errors) > min(errors) else {}
    evidence |= {"xid": max(xids)} if max(xids) > 0 else {}
    has_clocks = clock > 0 and peer_clock > 0
    if shared := shared_gpu(samples, peers):
        return "shared_gpu", evidence | shared
    explained = has_clocks and peer_clock / clock - 1 >= config.cause_share * (slowdown - 1)
    if explained and peer_clock >= config.clock_ratio * clock:
        return "throttled" if reasons else "", evidence
    if has_clocks and 0 < samples.processes <= 1 and _known([peer.processes for peer in peers]) > 0:
        return "slow_part", evidence
    return "", evidence


def shared_gpu(samples: GpuSamples, peers: Sequence[GpuSamples]) -> dict[str, object]:
    """Return the evidence that others use the rank's GPU, and its peers' less; {} if they do not.

    That is time in which the GPU was busy beyond what the job's own processes used. Where NVML does not tell that, more
    processes than on the peers' GPUs count.
    """
    if not len(samples) or not any(map(len, peers)):
        return {}
    used, peer_used = samples.foreign, _known([peer.foreign for peer in peers])
    if used >= 0 and peer_used >= 0:
        enough = used - peer_used >= SHARED_PERCENT
        return {"others_percent": round(used, 1), "peers_others_percent": round(peer_used, 1)} if enough else {}
    processes, peer_processes = samples.processes, _known([peer.processes for peer in peers])
    more = processes > max(1.0, peer_processes) and peer_processes > 0
    return {"processes": processes, "peers_processes": peer_processes} if more else {}


def _median(values: NDArray[np.int32]) -> float:
    """Return the median of the values that are known; -1 = none is."""
    known = values[values >= 0].tolist()
    return float(median(known)) if known else -1.0


def _known(medians: Sequence[float]) -> float:
    known = [value for value in medians if value >= 0]
    return float(median(known)) if known else -1.0
