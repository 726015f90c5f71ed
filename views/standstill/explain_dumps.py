"""From files to the answer: reads dumps one by one, keeps of each what explains, and prints who is waited for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drumline.infra.runtime.exit_codes import BAD_INPUT, OK
from drumline.infra.runtime.terminal import echo, escape_controls
from drumline.producers.foreign.dumps.bounded_values import BadDump
from drumline.producers.foreign.dumps.flight_recorder import read_flight_recorder
from drumline.producers.foreign.dumps.ras import read_ras
from drumline.producers.foreign.recognise import HANG_DUMPS, Format, recognise
from drumline.producers.ras.report import RasReport
from drumline.producers.replay.parquet import BadTrace
from drumline.streams.hangs.named_ranks import Reason
from drumline.views.standstill.answer import StandstillAnswer, answer
from drumline.views.standstill.dump_job import job_of_dumps
from drumline.views.standstill.group_progress import RankProgress, progress_of
from drumline.views.standstill.ras_job import job_of_ras, lost_ranks
from drumline.views.standstill.standstill_text import lines
from drumline.views.standstill.unsent_receives import UNSENT, with_open_receives


class NothingReadable(Exception):
    """No file could be used; the text names each, and the reason."""


@dataclass(slots=True)
class _Files:
    """Holds what was read: progress by rank, with its file and whether it has stacks; the newest answer of RAS."""

    dumps: dict[int, tuple[tuple[int, bool], Path, RankProgress]] = field(default_factory=dict)
    report: RasReport | None = None
    unreadable: list[str] = field(default_factory=list)

    def read(self, path: Path, form: Format) -> None:
        """Take a file. Raises BadDump."""
        if form is Format.RAS:
            report = read_ras(path)
            self.unreadable += [f"{path}: {defect}" for defect in report.defects]
            if self.report is None or report.timestamp >= self.report.timestamp:
                self.report = report
            return
        if form not in HANG_DUMPS:
            raise BadDump(f"{path}: is neither a dump of PyTorch's Flight Recorder nor JSON of ncclras")
        dump = read_flight_recorder(path)
        self.unreadable += [f"{path}: {defect}" for defect in dump.defects]
        newest = dump.calls[-1] if dump.calls else None
        weight = (newest.record if newest else -1, bool(newest and newest.frames))
        kept = self.dumps.get(dump.rank)
        if kept is not None:
            other = path if weight <= kept[0] else kept[1]
            self.unreadable.append(f"{other}: is of rank {dump.rank} too, and the other file has more; it is left out")
        if kept is None or weight > kept[0]:
            self.dumps[dump.rank] = (weight, path, progress_of(dump))


def explain_dumps(paths: Iterable[Path], forms: Mapping[Path, Format] | None = None) -> StandstillAnswer:
    """Return which rank a job waits for, from dumps of some or all ranks; a folder stands for its files.

    `forms`: of files that were recognised before.

    Where both kinds are given, the dumps explain, and RAS adds which processes have ended or do not answer. Raises
    NothingReadable.
    """
    files = _Files()
    for path in _expanded(paths):
        try:
            files.read(path, (forms or {}).get(path) or recognise(path))
        except (BadDump, BadTrace) as error:
            files.unreadable.append(str(error))
    if files.dumps:
        exited, silent = lost_ranks(files.report) if files.report is not None else ({}, {})
        exited = {rank: host for rank, host in exited.items() if rank not in files.dumps}
        return _answer_of_dumps([progress for _, _, progress in files.dumps.values()], exited, silent, files.unreadable)
    if files.report is not None:
        return answer(job_of_ras(files.report), files.unreadable)
    raise NothingReadable("\n".join(files.unreadable) or "no file is given")


def _answer_of_dumps(
    dumps: Sequence[RankProgress], exited: Mapping[int, str], silent: Mapping[int, str], unreadable: Sequence[str]
) -> StandstillAnswer:
    """Return the answer of dumps. Where it is none, and calls in another order explain the standstill, that is it."""
    corrected = with_open_receives(dumps)
    notes = [] if corrected == list(dumps) else [UNSENT]
    job = job_of_dumps(corrected, exited)
    job.notes += notes
    job.absent |= {rank: text for rank, text in silent.items() if rank in job.absent}
    result = answer(job, unreadable)
    if result.reason == Reason.INSUFFICIENT:
        ordered = job_of_dumps(corrected, exited, runs_in_order=True)
        ordered.notes += [*notes, "The dumps do not show what GPUs began: this rests on the order of the calls."]
        if (by_order := answer(ordered, unreadable)).reason == Reason.DEADLOCK:
            return by_order
    return result


def _expanded(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        yield from sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]


def print_standstill(files: Mapping[Path, Format], as_json: bool) -> int:
    """Print which rank a job waits for, as text or as one JSON object, and return the exit code.

    `files`: with their formats (trace_files()).
    """
    try:
        result = explain_dumps(files, files)
    except NothingReadable as error:
        for line in str(error).splitlines():
            echo(f"drumline verdict: {escape_controls(line)}", err=True)
        return BAD_INPUT
    if as_json:
        echo(json.dumps(result.as_json()))
        return OK
    for line in lines(result):
        echo(escape_controls(line))
    return OK
