"""The reason that the same work takes a rank longer: its GPU's samples against its peers' (gpu.device.v1)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median  # of some samples: 10 times as fast as NumPy's

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import Rows, stacked
from drumline.streams.core.thresholds import StragglerConfig

#: Columns that verdicts use; -1 = not supported.
SAMPLED = ("sm_clock", "throttle_reasons", "processes", "ecc_uncorrected", "xid", "util_gpu", "job_util_sm")
SAMPLE_ROW = np.dtype([("time_ns", "<i8"), *((name, "<i4") for name in SAMPLED)])
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


def sample_rows(batch: Batch) -> Rows:
    """Return the SAMPLE_ROW rows of a gpu.device.v1 batch."""
    rows = np.zeros(batch.rows, SAMPLE_ROW)
    for name in SAMPLE_ROW.names or ():
        rows[name] = np.minimum(batch.columns[name], np.iinfo(SAMPLE_ROW[name]).max)
    return rows


def merged(old: Rows, new: Rows) -> Rows:
    """Return the samples of both by time, each once."""
    return np.unique(stacked([old, new]))


def device_detail(
    samples: Rows, peers: Sequence[Rows], slowdown: float, config: StragglerConfig
) -> tuple[str, dict[str, object]]:
    """Return (detail, evidence) of a rank whose compute takes longer than its peers' for the same work.

    `slowdown`: its compute over its peers' (1.2 = 20% longer). The details, in this order:

    - shared_gpu: see `shared_gpu`. It comes first, since a GPU with more to do reaches its power cap.
    - throttled: the SM clock is lower, by enough to explain the slowdown, and NVML gives a reason that slows it.
    - slow_part: neither, with all of it known, and no other process on the GPU.
    - "": the samples do not decide.
    """
    if not len(samples) or not any(len(rows) for rows in peers):
        return "", {}
    clock, peer_clock = _median(samples, "sm_clock"), _peers(peers, "sm_clock")
    reasons = [name for bit, name in REASONS.items() if _share(samples, bit) >= config.reason_share]
    evidence: dict[str, object] = {"sm_clock_mhz": clock, "peers_sm_clock_mhz": peer_clock, "clock_reasons": reasons}
    errors = int(samples["ecc_uncorrected"].max() - samples["ecc_uncorrected"].min())
    evidence |= {"ecc_uncorrected": errors} if errors else {}
    evidence |= {"xid": int(samples["xid"].max())} if samples["xid"].max() > 0 else {}
    has_clocks = clock > 0 and peer_clock > 0
    if shared := shared_gpu(samples, peers):
        return "shared_gpu", evidence | shared
    explained = has_clocks and peer_clock / clock - 1 >= config.cause_share * (slowdown - 1)
    if explained and peer_clock >= config.clock_ratio * clock:
        return "throttled" if reasons else "", evidence
    if has_clocks and 0 < _median(samples, "processes") <= 1 and _peers(peers, "processes") > 0:
        return "slow_part", evidence
    return "", evidence


def shared_gpu(samples: Rows, peers: Sequence[Rows]) -> dict[str, object]:
    """Return the evidence that others use the rank's GPU, and its peers' less; {} if they do not.

    That is time in which the GPU was busy beyond what the job's own processes used. Where NVML does not tell that, more
    processes than on the peers' GPUs count.
    """
    if not len(samples) or not any(len(rows) for rows in peers):
        return {}
    used, peers_used = _foreign(samples), [value for rows in peers if (value := _foreign(rows)) >= 0]
    if used >= 0 and peers_used:
        peer_used = float(np.median(peers_used))
        enough = used - peer_used >= SHARED_PERCENT
        return {"others_percent": round(used, 1), "peers_others_percent": round(peer_used, 1)} if enough else {}
    processes, peer_processes = _median(samples, "processes"), _peers(peers, "processes")
    more = processes > max(1.0, peer_processes) and peer_processes > 0
    return {"processes": processes, "peers_processes": peer_processes} if more else {}


def _foreign(rows: Rows) -> float:
    """Return the time in which a GPU was busy for others, in %, median; -1 = unknown."""
    exclusive = (rows["processes"] >= 0) & (rows["processes"] <= 1)
    known = exclusive | ((rows["util_gpu"] >= 0) & (rows["job_util_sm"] >= 0))
    used = np.where(exclusive, 0, np.maximum(rows["util_gpu"] - rows["job_util_sm"], 0))
    return float(np.median(used[known])) if known.any() else -1.0


def _median(rows: Rows, name: str) -> float:
    values = rows[name][rows[name] >= 0]
    return float(median(values.tolist())) if len(values) else -1.0


def _peers(peers: Sequence[Rows], name: str) -> float:
    known = [value for rows in peers if (value := _median(rows, name)) >= 0]
    return float(median(known)) if known else -1.0


def _share(rows: Rows, bit: int) -> float:
    known = rows["throttle_reasons"][rows["throttle_reasons"] >= 0]
    return float(((known & bit) != 0).mean()) if len(known) else 0.0
