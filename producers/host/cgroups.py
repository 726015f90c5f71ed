"""Counters of cgroups (v2) and of the whole host: throttling, and time in which tasks waited for something (PSI)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from drumline.producers.batches.sample_envelopes import UNKNOWN

#: Kinds of pressure, and the columns of the cgroup's and the host's.
PRESSURES = ("cpu", "io", "memory")


class CounterFile:
    """A small file of the kernel that is read again and again. `text` returns b"" where it cannot be read."""

    def __init__(self, path: Path | str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1

    def text(self) -> bytes:
        """Return the content now."""
        try:
            return os.pread(self._descriptor, 4_096, 0) if self._descriptor >= 0 else b""
        except OSError:  # the process or cgroup is gone
            return b""

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def number_after(text: bytes, name: bytes) -> int:
    """Return the number behind a name; UNKNOWN without it."""
    digits = text.partition(name)[2].split(maxsplit=1)[:1]
    return int(digits[0]) if digits and digits[0].isdigit() else UNKNOWN


class Pressure:
    """Total times of a folder with files of PSI. `names`: of the files of PRESSURES."""

    def __init__(self, folder: Path, names: tuple[str, ...], prefix: str = "") -> None:
        self._files = [CounterFile(folder / name) for name in names]
        self._columns = [f"{prefix}{kind}_pressure_ns" for kind in PRESSURES]

    def read(self) -> dict[str, int]:
        """Return column -> ns in total, in which some task waited."""
        totals = (number_after(file.text().partition(b"full")[0], b"total=") for file in self._files)
        return {
            column: total * 1_000 if total >= 0 else UNKNOWN
            for column, total in zip(self._columns, totals, strict=True)
        }

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


class Cgroup:
    """Counters of one cgroup; a quota may lie on it or on one above."""

    def __init__(self, root: Path, path: str) -> None:
        parts = [part for part in path.split("/") if part and part != ".."]
        folders = [root.joinpath(*parts[:count]) for count in range(1, len(parts) + 1)]
        self._quotas = [CounterFile(folder / "cpu.stat") for folder in folders]
        self._pressure = Pressure(folders[-1] if folders else root, tuple(f"{kind}.pressure" for kind in PRESSURES))

    def read(self) -> dict[str, int]:
        """Return column -> ns in total."""
        throttled = [number_after(file.text(), b"throttled_usec") for file in self._quotas]
        known = [total for total in throttled if total >= 0]
        return {"throttled_ns": sum(known) * 1_000 if known else UNKNOWN, **self._pressure.read()}

    def close(self) -> None:
        """Close the files."""
        for file in self._quotas:
            file.close()
        self._pressure.close()


def cgroup_root(mounted: Path) -> Path:
    """Return where cgroup v2 is mounted: in a hybrid setup, one folder below."""
    unified = mounted / "unified"
    return unified if unified.is_dir() else mounted


def cgroup_of(text: str) -> str:
    """Return the path in /proc/PID/cgroup; "" without v2."""
    return next((line[3:] for line in text.splitlines() if line.startswith("0::")), "")


def increase(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return the differences of counters; UNKNOWN where one is, or where it has fallen."""
    out = {}
    for name, value in now.items():
        old = before.get(name, UNKNOWN)
        out[name] = value - old if 0 <= old <= value else UNKNOWN
    return out
