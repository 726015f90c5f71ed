"""Reads traces of all formats: one reader a format, each yields the processes that its file has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from drumline.producers.activity.table import Table
from drumline.producers.foreign.process_trace import ProcessTrace, ranked
from drumline.producers.foreign.recognise import HANG_DUMPS, Format
from drumline.producers.foreign.trace_summary import TraceSummary
from drumline.producers.foreign.write_recording import manifest_of
from drumline.producers.replay.parquet import KERNEL_NEEDED, BadTrace
from drumline.producers.replay.trace import Rank, Trace

#: Called with the bytes of a file that have been read since the last call.
Progress = Callable[[int], None]
Reader = Callable[[Path, Progress], Iterator[ProcessTrace]]


def _kineto(path: Path, progress: Progress) -> Iterator[ProcessTrace]:
    from drumline.producers.foreign.kineto.kineto_process import read_kineto  # msgspec, of the extra `import`

    yield read_kineto(path, progress)


def _nsys(path: Path, progress: Progress) -> Iterator[ProcessTrace]:
    from drumline.producers.foreign.nsys.nsys_processes import read_nsys

    yield from read_nsys(path)
    progress(path.stat().st_size)


def _inspector(path: Path, progress: Progress) -> Iterator[ProcessTrace]:
    from drumline.producers.foreign.inspector.inspector_processes import read_inspector

    yield from read_inspector(path)
    progress(path.stat().st_size)


#: Format -> its reader: takes a file, yields its processes with their ranks, -1 where it states none. Raises BadTrace.
READERS: Mapping[Format, Reader] = {Format.KINETO: _kineto, Format.NSYS: _nsys, Format.INSPECTOR: _inspector}


def one_format(files: Mapping[Path, Format]) -> Format:
    """Return the format of all files: of dumps of a hang, which may be of two formats, that of the first.

    Raises BadTrace where they differ otherwise.
    """
    (first_path, first), *rest = files.items()
    for path, other in rest:
        if other is not first and not {first, other} <= HANG_DUMPS:
            raise BadTrace(f"{path} is {other}, {first_path} is {first}: give files of one format, of one job")
    return first


def read_traces(files: Sequence[Path], form: Format, progress: Progress = lambda size: None) -> Iterator[ProcessTrace]:
    """Yield the processes of files of one format, each with a rank. Raises BadTrace."""
    if form in HANG_DUMPS:
        raise BadTrace(f"{files[0]}: a dump of a hang ({form}) makes no recording; `drumline verdict` is for it")
    if form not in READERS:
        raise BadTrace(
            f"{files[0]}: {form} is no trace of processes; `drumline replay` and `drumline evaluate` read it"
        )
    yield from ranked(trace for path in files for trace in READERS[form](path, progress))


def trace_of(traces: Iterable[ProcessTrace], run: str) -> tuple[Trace, TraceSummary]:
    """Return the processes as a recorded trace in memory, and what they hold. `run`: its name. Raises BadTrace.

    Kernels have the columns that derivation needs.
    """
    summary, processes = TraceSummary(), list[ProcessTrace]()
    for process in traces:
        summary.add(process)
        kernels = process.activity.kernels
        needed = Table({name: kernels[name] for name in KERNEL_NEEDED}, kernels.dictionaries)
        processes.append(replace(process, activity=replace(process.activity, kernels=needed)))
    processes.sort(key=lambda process: process.rank)
    ranks = tuple(Rank(p.rank, p.pid, p.host, p.gpu_index, p.gpu_uuid) for p in processes)
    activities = tuple(process.activity for process in processes)
    return Trace(manifest_of(summary, run), ranks, activities, 0), summary
