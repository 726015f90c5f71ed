"""Why the same work takes a rank longer: its GPU's samples against its peers' (gpu.device.v1). Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import Rows, stacked
from drumline.streams.core.thresholds import StragglerConfig

#: Columns that verdicts use; -1 = not supported.
SAMPLED = ("sm_clock", "throttle_reasons", "processes", "ecc_uncorrected", "xid")
SAMPLE_ROW = np.dtype([("time_ns", "<i8"), *((name, "<i4") for name in SAMPLED)])
#: NVML clock event reasons that slow a GPU down (nvml.h, nvmlClocksEventReason*).
REASONS = {
    0x4: "power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}
#: Peers looked at, at most: enough for a median, whatever the size of the job.
PEERS = 16


def sample_rows(batch: Batch) -> Rows:
    """SAMPLE_ROW rows of a gpu.device.v1 batch."""
    rows = np.zeros(batch.rows, SAMPLE_ROW)
    for name in SAMPLE_ROW.names or ():
        rows[name] = np.minimum(batch.columns[name], np.iinfo(SAMPLE_ROW[name]).max)
    return rows


def merged(old: Rows, new: Rows) -> Rows:
    """By time, each sample once."""
    return np.unique(stacked([old, new]))


def device_detail(
    own: Rows, peers: Sequence[Rows], slowdown: float, config: StragglerConfig
) -> tuple[str, dict[str, object]]:
    """(detail, evidence) of a rank whose compute takes `slowdown` (1.2 = 20%) times its peers', for the same work.

    shared_gpu: more processes on it than on the peers'; that comes first, since a GPU with more to do reaches its power
    cap. throttled: its SM clock is lower, by enough to explain it, and NVML gives a reason that slows it. slow_part:
    neither, with all of it known, and nobody else on it. "" where the samples do not tell.
    """
    if not len(own) or not any(len(rows) for rows in peers):
        return "", {}
    mine, usual = _median(own, "sm_clock"), _peers(peers, "sm_clock")
    reasons = [name for bit, name in REASONS.items() if _share(own, bit) >= config.reason_share]
    found: dict[str, object] = {"sm_clock_mhz": mine, "peers_sm_clock_mhz": usual, "clock_reasons": reasons}
    errors = int(own["ecc_uncorrected"].max() - own["ecc_uncorrected"].min())
    found |= {"ecc_uncorrected": errors} if errors else {}
    found |= {"xid": int(own["xid"].max())} if own["xid"].max() > 0 else {}
    clocks = mine > 0 and usual > 0
    processes, others = _median(own, "processes"), _peers(peers, "processes")
    if processes > max(1.0, others) and others > 0:
        return "shared_gpu", found | {"processes": processes, "peers_processes": others}
    if clocks and usual >= config.clock_ratio * mine and usual / mine - 1 >= config.cause_share * (slowdown - 1):
        return "throttled" if reasons else "", found
    if clocks and 0 < processes <= 1 and others > 0:
        return "slow_part", found
    return "", found


def _median(rows: Rows, name: str) -> float:
    values = rows[name][rows[name] >= 0]
    return float(np.median(values)) if len(values) else -1.0


def _peers(peers: Sequence[Rows], name: str) -> float:
    known = [value for rows in peers if (value := _median(rows, name)) >= 0]
    return float(np.median(known)) if known else -1.0


def _share(rows: Rows, bit: int) -> float:
    known = rows["throttle_reasons"][rows["throttle_reasons"] >= 0]
    return float(((known & bit) != 0).mean()) if len(known) else 0.0
