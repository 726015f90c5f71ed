"""Links of a host as sysfs shows them: InfiniBand and RoCE ports, and Ethernet interfaces of hardware.

Files and units: Documentation/ABI/stable/sysfs-class-infiniband and .../testing/sysfs-class-net-statistics of Linux.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from drumline.producers.batching.sample_envelopes import UNKNOWN

#: Column -> files of a port whose numbers are added. Data is counted in words of four octets.
PORT_COUNTERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rx_bytes": ("counters/port_rcv_data",),
        "tx_bytes": ("counters/port_xmit_data",),
        "rx_errors": ("counters/port_rcv_errors",),
        "tx_discards": ("counters/port_xmit_discards",),
        "symbol_errors": ("counters/symbol_error",),
        "integrity_errors": ("counters/local_link_integrity_errors", "counters/excessive_buffer_overrun_errors"),
        "link_downs": ("counters/link_downed",),
        "recoveries": ("counters/link_error_recovery",),
        "transmit_waits": ("counters/port_xmit_wait",),
        "sequence_errors": ("hw_counters/packet_seq_err", "hw_counters/out_of_sequence"),
        "timeouts": ("hw_counters/local_ack_timeout_err",),
        "congestion_marks": ("hw_counters/np_ecn_marked_roce_packets",),
    }
)
_OCTETS = {"rx_bytes": 4, "tx_bytes": 4}
#: Column -> files of an interface.
INTERFACE_COUNTERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rx_bytes": ("statistics/rx_bytes",),
        "tx_bytes": ("statistics/tx_bytes",),
        "rx_errors": ("statistics/rx_errors",),
        "tx_errors": ("statistics/tx_errors",),
        "rx_discards": ("statistics/rx_dropped",),
        "tx_discards": ("statistics/tx_dropped",),
        "symbol_errors": ("statistics/rx_crc_errors",),
        "link_downs": ("carrier_down_count",),
    }
)
COUNTERS = tuple(dict.fromkeys((*PORT_COUNTERS, *INTERFACE_COUNTERS)))
#: ARPHRD_ETHER (if_arp.h). IPoIB is an interface too, and its port is listed already.
_ETHERNET = "1"


@dataclass(frozen=True)
class HostLink:
    """One link as it is now.

    Attributes:
        device: name: `mlx5_0/1`, `eth0`.
        kind: infiniband, roce or ethernet.
        is_up: whether it carries data.
        mbps: its speed; UNKNOWN while it is down.
        totals: counters; UNKNOWN where the driver has none.
    """

    device: str
    kind: str
    is_up: bool
    mbps: int
    totals: Mapping[str, int]


def links(root: Path) -> Iterator[HostLink]:
    """Yield the links of a host. `root`: where sysfs is mounted. Reads small files of the kernel."""
    for port in sorted(root.glob("class/infiniband/*/ports/*")):
        is_up = _text(port / "state").endswith("ACTIVE")
        rate = _text(port / "rate").split(maxsplit=1)
        kind = "roce" if _text(port / "link_layer") == "Ethernet" else "infiniband"
        yield HostLink(
            f"{port.parents[1].name}/{port.name}",
            kind,
            is_up,
            round(float(rate[0]) * 1_000) if is_up and rate and _is_number(rate[0]) else UNKNOWN,
            _totals(port, PORT_COUNTERS),
        )
    for interface in sorted(root.glob("class/net/*")):
        if not (interface / "device").exists() or _text(interface / "type") != _ETHERNET:
            continue  # bridges, tunnels, pairs of containers
        is_up = _text(interface / "operstate") == "up"
        mbps = _number(interface / "speed") if is_up else UNKNOWN
        totals = _totals(interface, INTERFACE_COUNTERS)
        yield HostLink(interface.name, "ethernet", is_up, mbps if mbps > 0 else UNKNOWN, totals)


def _totals(folder: Path, counters: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    totals = {}
    for name, files in counters.items():
        values = [value for file in files if (value := _number(folder / file)) >= 0]
        totals[name] = sum(values) * _OCTETS.get(name, 1) if values else UNKNOWN
    return totals


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else UNKNOWN


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()


def _text(path: Path) -> str:
    """Return a file's content; "" where it cannot be read: an interface that is down refuses its speed."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
