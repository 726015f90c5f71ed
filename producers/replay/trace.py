"""A recorded trace on disk: manifest.json and Parquet tables, read into the columns that a live decoder gives."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drumline.producers.activity.activity import Activity
from drumline.producers.activity.table import Table, concatenate_tables
from drumline.producers.replay import parquet
from drumline.producers.replay.parquet import BadTrace
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

_LONGEST_NS = 1 << 62


@dataclass(frozen=True)
class Rank:
    """One process of the recorded job, as in the manifest."""

    rank: int
    pid: int
    host: str
    gpu_index: int
    gpu_uuid: str


@dataclass(frozen=True)
class Trace:
    """A recorded trace: its ranks, rising, and the activity of each."""

    manifest: Mapping[str, Any]
    ranks: tuple[Rank, ...]
    activities: tuple[Activity, ...]
    unknown_samples: int

    @property
    def world_size(self) -> int:
        """Return the ranks of the job, of which some may not be recorded."""
        stated = self.manifest.get("world_size")
        return max(self.ranks[-1].rank + 1, stated if isinstance(stated, int) else 0)


def load_manifest(folder: Path, *, phases: bool = False) -> dict[str, Any]:
    """Return manifest.json of a trace folder. Raises BadTrace.

    Without `phases`, injected faults are left out: what evaluates a job must not see them.
    """
    path = folder / "manifest.json"
    if not folder.is_dir():
        raise BadTrace(f"{folder} is not a folder")
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadTrace(f"{path} is missing: not a recorded trace") from None
    except (OSError, ValueError) as error:
        raise BadTrace(f"{path}: {error}") from None
    if not isinstance(manifest, dict):
        raise BadTrace(f"{path}: not a JSON object")
    return manifest if phases else {k: v for k, v in manifest.items() if k != "phases"}


def read_trace(
    folder: Path, manifest: Mapping[str, Any] | None = None, topics: Collection[Topic] | None = None
) -> Trace:
    """Read a trace folder; kernel.parquet is required, other tables may be missing. Raises BadTrace.

    `topics`: will be published; columns that none of them needs are not read.
    """
    manifest = load_manifest(folder) if manifest is None else manifest
    ranks = _ranks(folder, manifest)
    wanted = set(Topic) if topics is None else set(topics)
    kernels = parquet.kernels(folder, full=Topic.KERNEL in wanted)
    copies = [table for table in (parquet.copies(folder), parquet.memsets(folder)) if table is not None]
    markers, payloads = parquet.markers(folder), parquet.payloads(folder)
    samples = parquet.samples(folder) if Topic.DEVICE in wanted else None
    owner = _owners(samples, ranks)
    activities = []
    for info in ranks:
        kernel, bad_kernels = _valid(_of(kernels, info.rank))
        copied, bad_copies = _valid(concatenate_tables(_of(t, info.rank) for t in copies)) if copies else (None, 0)
        parts: dict[str, Any] = {"kernels": kernel}
        if copied is not None:
            parts["copies"] = copied
        if markers is not None:
            parts["markers"] = _of(markers, info.rank)
        if payloads is not None:
            parts["payloads"] = _of(payloads, info.rank)
        if samples is not None:
            rank_samples = samples.take(owner == info.rank)
            parts["samples"] = Table({k: v for k, v in rank_samples.columns.items() if k not in ("uuid", "gpu")})
        invalid = {Topic.KERNEL: bad_kernels, Topic.MEMCPY: bad_copies}
        activities.append(Activity(**parts, invalid={k: v for k, v in invalid.items() if v}))
    return Trace(manifest, ranks, tuple(activities), int((owner < 0).sum()))


def _ranks(folder: Path, manifest: Mapping[str, Any]) -> tuple[Rank, ...]:
    path = folder / "manifest.json"
    listed = manifest.get("ranks")
    if not isinstance(listed, list) or not listed:
        raise BadTrace(f"{path}: `ranks` must list the recorded processes")
    try:
        ranks = [
            Rank(int(r["rank"]), int(r["pid"]), str(r["host"]), int(r.get("gpu_index", -1)), str(r.get("gpu_uuid", "")))
            for r in listed
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadTrace(f"{path}: `ranks`: every one needs rank, pid and host ({error!r})") from None
    numbers = [r.rank for r in ranks]
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise BadTrace(f"{path}: ranks must be 0 or more, each once")
    return tuple(sorted(ranks, key=lambda r: r.rank))


def _owners(samples: Table | None, ranks: tuple[Rank, ...]) -> Array:
    """Return the rank on each sample's GPU, by UUID, else by index where that is unique; -1 = no rank."""
    if samples is None:
        return np.empty(0, np.int64)
    owner = np.full(samples.rows, -1, np.int64)
    for info in ranks:
        owner[samples["uuid"] == info.gpu_uuid] = info.rank
        if [other.gpu_index for other in ranks].count(info.gpu_index) == 1 and info.gpu_uuid not in samples["uuid"]:
            owner[(samples["gpu"] == info.gpu_index) & (owner < 0)] = info.rank
    return owner


def _of(table: Table, rank: int) -> Table:
    """Return one rank's rows, without the rank column."""
    rows = np.flatnonzero(table["rank"] == rank)
    index: Array | slice = rows
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        index = slice(int(rows[0]), int(rows[-1]) + 1)  # ranks lie one after the other: a view, not a copy
    columns = {name: values[index] for name, values in table.columns.items() if name != "rank"}
    return Table(columns, table.dictionaries)


def _valid(table: Table) -> tuple[Table, int]:
    """Return the rows whose times CUPTI filled in, and the number of others."""
    good = (table["start_ns"] > 0) & (table["duration_ns"] < _LONGEST_NS)
    if good.all():
        return table, 0
    return table.take(good), int((~good).sum())
