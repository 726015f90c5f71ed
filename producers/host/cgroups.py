"""Counters of cgroups and of the whole host: throttling, and time in which tasks waited for something (PSI, v2)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from drumline.producers.batching.sample_envelopes import UNKNOWN

#: Kinds of pressure, and the columns of the cgroup's and the host's.
PRESSURES = ("cpu", "io", "memory")


class CounterFile:
    """A small file of the kernel that is read again and again. `text` returns b"" where it cannot be read."""

    def __init__(self, path: Path | str) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
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


@dataclass(frozen=True, slots=True)
class CgroupPlace:
    """Folders of a process's cgroup: `quotas`, on any of which a quota may lie; `pressure`, which has PSI."""

    quotas: tuple[Path, ...] = ()
    pressure: Path | None = None


class Cgroup:
    """Counters of one cgroup; a quota may lie on it or on one above."""

    def __init__(self, place: CgroupPlace) -> None:
        self._quotas = [CounterFile(folder / "cpu.stat") for folder in place.quotas]
        names = tuple(f"{kind}.pressure" for kind in PRESSURES)
        self._pressure = Pressure(place.pressure or Path(os.devnull), names)

    def read(self) -> dict[str, int]:
        """Return column -> ns in total."""
        known = [total for file in self._quotas if (total := _throttled_ns(file.text())) >= 0]
        return {"throttled_ns": sum(known) if known else UNKNOWN, **self._pressure.read()}

    def close(self) -> None:
        """Close the files."""
        for file in self._quotas:
            file.close()
        self._pressure.close()


def _throttled_ns(text: bytes) -> int:
    in_us = number_after(text, b"throttled_usec")
    return in_us * 1_000 if in_us >= 0 else number_after(text, b"throttled_time")  # v1


def cgroup_place(text: str, mounted: Path, root: Path) -> CgroupPlace:
    """Return where the cgroups of a process are; without folders where they are not seen.

    `text`: of its /proc/PID/cgroup. `mounted`: where cgroups are mounted here. `root`: /proc/PID/root.
    """
    paths = {names: path for _, names, path in (line.split(":", 2) for line in text.splitlines())}
    unified = mounted / "unified"  # in a hybrid setup
    joint = _folders(unified if unified.is_dir() else mounted, paths[""], root) if "" in paths else ()
    of_cpu = (_folders(mounted / names, path, root) for names, path in paths.items() if "cpu" in names.split(","))
    return CgroupPlace(next(of_cpu, ()) or joint, joint[-1] if joint else None)


def _folders(mounted: Path, path: str, root: Path) -> tuple[Path, ...]:
    """Return the folders of a cgroup and of those above it.

    One outside of what is mounted here, as that of another container, is where the process itself has it.
    """
    parts = [part for part in path.split("/") if part]
    inside = root / mounted.relative_to(mounted.anchor)
    try:
        if ".." not in parts and mounted.joinpath(*parts).is_dir():
            return _down(mounted, parts)
        if inside.stat().st_dev != mounted.stat().st_dev:
            return ()
        parts = [part for part in parts if part != ".."]  # of a process of the host they lead from the first cgroup
        if inside.joinpath(*parts).is_dir():
            return _down(inside, parts)
        is_root = not any((inside / name).exists() for name in ("cgroup.events", "tasks"))  # of all cgroups, v2
        return () if is_root else (inside,)
    except OSError:  # the process is gone, or may not be traced
        return ()


def _down(folder: Path, parts: list[str]) -> tuple[Path, ...]:
    return tuple(folder.joinpath(*parts[:count]) for count in range(len(parts) + 1))


def increase(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return the differences of counters; UNKNOWN where one is, or where it has fallen."""
    out = {}
    for name, value in now.items():
        old = before.get(name, UNKNOWN)
        out[name] = value - old if 0 <= old <= value else UNKNOWN
    return out
