"""Samples of a host's links: rows of gpu.network.v1, with what is wrong with a link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from drumline.producers.batching.sample_envelopes import UNKNOWN
from drumline.producers.host.cgroups import increase
from drumline.producers.network.links import COUNTERS, HostLink, links

SYSFS = Path("/sys")
#: Where the wanted speeds are set.
SETTING = "DRUMLINE_AGENT__LINKS"


def expected_speeds(text: str) -> dict[str, int]:
    """Return pattern of device -> Mbit/s of a setting like `mlx5_*=400,eth0=25`, in Gbit/s. Raises ValueError."""
    speeds = {}
    for pair in text.split(",") if text else []:
        pattern, _, speed = pair.strip().rpartition("=")
        if not pattern:
            raise ValueError(f"{SETTING}: {pair!r} is not DEVICE=GBITS")
        speeds[pattern] = round(float(speed) * 1_000)
    return speeds


@dataclass(frozen=True)
class LinkSample:
    """One row: `texts` are columns of words, `numbers` the rest."""

    texts: Mapping[str, str]
    numbers: Mapping[str, int]


@dataclass
class _History:
    totals: Mapping[str, int]
    at_ns: int
    best_mbps: int = UNKNOWN
    was_up: bool = False


class LinkSamples:
    """Reads all links of a host, and remembers each one's counters and best speed. Used by one thread."""

    def __init__(self, wanted: Mapping[str, int], root: Path = SYSFS) -> None:
        self._wanted, self._root = dict(wanted), root
        self._seen: dict[str, _History] = {}

    def read(self, now_ns: int) -> Iterator[LinkSample]:
        """Yield a row for each link, of the time since the last call; links that are new have one next time."""
        for link in links(self._root):
            before = self._seen.get(link.device)
            history = before or _History(link.totals, now_ns)
            counts, interval_ns = increase(history.totals, link.totals), now_ns - history.at_ns
            history.totals, history.at_ns = link.totals, now_ns
            history.was_up |= link.is_up
            history.best_mbps = max(history.best_mbps, link.mbps)
            self._seen[link.device] = history
            if before is not None and interval_ns > 0:
                yield self._sample(link, history, {"time_ns": now_ns, "interval_ns": interval_ns, **counts})

    def _sample(self, link: HostLink, history: _History, counts: Mapping[str, int]) -> LinkSample:
        setting = next((mbps for pattern, mbps in self._wanted.items() if fnmatchcase(link.device, pattern)), UNKNOWN)
        expected = setting if setting > 0 else history.best_mbps
        is_down = not link.is_up and (history.was_up or setting > 0)
        reason = ("it was up before" if history.was_up else f"{SETTING} names it") if is_down else ""
        if 0 < link.mbps < expected:
            source = f"{SETTING} wants" if setting > 0 else "it had"
            reason = f"{link.mbps / 1_000:g} Gbit/s; {source} {expected / 1_000:g}"
        texts = {"device": link.device, "link": link.kind, "state": "up" if link.is_up else "down", "reason": reason}
        numbers = {**dict.fromkeys(COUNTERS, UNKNOWN), **counts}
        numbers |= {"speed_mbps": link.mbps, "expected_mbps": expected, "is_down": int(is_down)}
        return LinkSample(texts, numbers)
