"""Text about a slow link, from the evidence of the job's row."""

from __future__ import annotations

import json
from typing import Any

#: Data that was sent again in a window from which on it is said; MB. Below, it is what congestion control needs.
LOST_MB = 0.1
#: Direction -> how it is said of two hosts, and of one.
_PAIRED = {"one_way": " to ", "both": " and "}
_SIDES = {"sends": " (what it sends)", "receives": " (what it receives)"}


def slow_link_texts(evidence: str) -> list[str]:
    """Return what is slow, and each flow that is named, as texts; [] where evidence (JSON) names none."""
    try:
        values: Any = json.loads(evidence) if '"flows"' in evidence else {}
        flows = [_flow(flow) for flow in values.get("flows", [])]
        return [*_extent(values), *flows] if flows else []
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return []


def slow_link_text(evidence: str) -> str:
    """Return what is slow and its worst flow as one text; "" where evidence (JSON) names none."""
    texts = slow_link_texts(evidence)
    return ": ".join(texts[:2])


def _extent(values: Any) -> list[str]:
    """Return the hosts and the device that are slow, in a list; [] where the flows have none in common."""
    host, to_host, direction = (str(values.get(name, "")) for name in ("link_host", "link_to_host", "direction"))
    nic = f" {values['nic']}" if values.get("nic") else ""
    if to_host:
        return [f"slow: {host}{nic}{_PAIRED.get(direction, ' and ')}{to_host}"]
    return [f"slow: {host}{nic}{_SIDES.get(direction, '')}"] if host else [f"slow: {int(values['slow_flows'])} flows"]


def _flow(flow: Any) -> str:
    sender, receiver = int(flow["from"]), int(flow["to"])
    norm = "as before" if flow["expected_by"] == "history" else "as others"
    hosts = f" ({flow['from_host']} to {flow['to_host']})"
    rates = f"{float(flow['gb_s']):.2f} GB/s, {float(flow['expected_gb_s']):.2f} expected, {norm}"
    again = float(flow.get("retransmitted_mb", 0.0))
    lost = f"; {again:.1f} MB sent again" if again >= LOST_MB else ""
    return f"rank {sender} to rank {receiver}{hosts} {rates}{lost}"
