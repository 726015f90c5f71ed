"""Formats of files that hold the facts of a training job, recognised by what the files contain."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

from drumline.producers.foreign.bounded_file import BoundedFile
from drumline.producers.foreign.nsys.database import NsysDatabase
from drumline.producers.replay.operation_table.table_reader import TABLES
from drumline.producers.replay.parquet import BadTrace

#: Bytes that a text format is recognised by; a Kineto file lists its process groups before its events.
HEAD, MOST_HEAD = 1 << 16, 1 << 26
SQLITE, PARQUET, PICKLE = b"SQLite format 3\0", b"PAR1", b"\x80"


class Format(StrEnum):
    """Names the formats that drumline reads."""

    KINETO = "kineto"
    NSYS = "nsys"
    INSPECTOR = "inspector"
    FLIGHT_RECORDER = "flight_recorder"
    RAS = "ras"
    RECORDING = "recording"
    OPERATION_TABLE = "operation_table"


#: State of a job that hangs, without times of its work: views/standstill explains it.
HANG_DUMPS = frozenset({Format.FLIGHT_RECORDER, Format.RAS})
#: Keys that only one format has, in JSON text, in the order in which they are looked for.
JSON_KEYS: Sequence[tuple[Format, re.Pattern[bytes]]] = (
    (Format.KINETO, re.compile(rb'"(traceEvents|distributedInfo|deviceProperties)"\s*:')),
    (Format.INSPECTOR, re.compile(rb'"coll_(perf|sn|exec_time_us)"\s*:|"p2p_perf"\s*:')),
    (Format.FLIGHT_RECORDER, re.compile(rb'"(collective_seq_id|p2p_seq_id|pg_status|pg_config)"\s*:')),
    (Format.RAS, re.compile(rb'"(communicators|communicators_count|ras_[a-z_]+)"\s*:')),
)
#: What a Flight Recorder dump has in its pickle.
PICKLE_KEYS = (b"collective_seq_id", b"pg_config", b"pg_status")


def recognise(path: Path) -> Format:
    """Return the format of a file or folder by its content. Raises BadTrace where it is none that drumline reads."""
    if path.is_dir():
        if (path / "manifest.json").is_file():
            return Format.RECORDING
        if sorted(path.glob(TABLES)):
            return Format.OPERATION_TABLE
        raise BadTrace(f"{path}: the folder has no manifest.json and no {TABLES}; name the files in it")
    with BoundedFile(path) as file:
        head = file.read(HEAD)
        if not head.strip():
            raise BadTrace(f"{path}: the file is empty")
        if head.startswith(SQLITE):
            return _sqlite(path)
        if head.startswith(PARQUET):
            return Format.OPERATION_TABLE
        if head.startswith(PICKLE):
            if any(key in head for key in PICKLE_KEYS):
                return Format.FLIGHT_RECORDER
            raise BadTrace(f"{path}: a pickle, but not of PyTorch's Flight Recorder; drumline opens no other")
        if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
            raise BadTrace(f"{path}: neither JSON nor another format that drumline reads ({', '.join(Format)})")
        return _json(path, file, head)


def trace_files(paths: Iterable[Path]) -> tuple[dict[Path, Format], list[str]]:
    """Return the files and recordings that these paths stand for, in order of their names, each with its format, and
    notes on what is left out.

    A folder stands for the files in it, and one of drumline's recordings or an operation table for itself. A name with
    * or ? that no file has is a pattern. Raises BadTrace where nothing is left, or a named file is of no format.
    """
    files, notes, given = dict[Path, Format](), list[str](), list(paths)
    for path in given:
        if path.is_dir() and not (path / "manifest.json").is_file():
            inside, left_out = _readable(path)
            files |= inside
            notes += left_out
        elif path.exists():
            files[path] = recognise(path)
        elif matches := sorted(map(Path, glob.glob(str(path)))):  # a shell leaves a quoted pattern as it is
            files |= {match: recognise(match) for match in matches}
        else:
            raise BadTrace(f"{path}: no such file or folder")
    if not files:
        reason = f"; {notes[0]}" if notes else ""
        hint = "; folders in it are not read, name them" if any(map(_has_folders, given)) else ""
        raise BadTrace(f"{', '.join(map(str, given))}: no file that drumline reads{reason}{hint}")
    return files, notes


def _has_folders(path: Path) -> bool:
    return path.is_dir() and any(inside.is_dir() for inside in path.iterdir())


def _readable(folder: Path) -> tuple[dict[Path, Format], list[str]]:
    """Return the files of a folder whose format is known, and a note on each other one."""
    files, notes = dict[Path, Format](), list[str]()
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.suffix in (".yaml", ".yml", ".md") or path.is_dir():
            continue
        try:
            files[path] = recognise(path)
        except BadTrace as error:
            notes.append(f"left out: {error}")
    return files, notes


def _json(path: Path, file: BoundedFile, head: bytes) -> Format:
    while True:
        for form, keys in JSON_KEYS:
            if keys.search(head):
                return form
        more = file.read(min(len(head), MOST_HEAD))
        if not more or len(head) >= MOST_HEAD:
            raise BadTrace(f"{path}: none of the formats that drumline reads ({', '.join(Format)})")
        head += more


def _sqlite(path: Path) -> Format:
    with NsysDatabase(path):
        return Format.NSYS
