"""Files of a step and of a request for Perfetto: `drumline timeline` behind an address, of few ranks and rows."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Sequence

from starlette.requests import Request

from drumline.views.report.text import timeline_command
from drumline.views.serve.addresses import BadAddress, number_of
from drumline.views.serve.database import Database, FileRejected
from drumline.views.serve.download import Download
from drumline.views.serve.timeline import LATE_RANKS, PEERS

#: Rows and ranks of a file: some 20 MB, in 9 queries a rank. `drumline timeline` has all ranks.
MOST_ROWS, MOST_RANKS = 200_000, LATE_RANKS + PEERS
#: Steps of a file: with kernels, eight ranks have some 10,000 rows a step.
MOST_STEPS = 20
#: A trace is made in memory: one at a time.
_writing = threading.Lock()


def ranks_of(request: Request) -> list[int]:
    """Return the ranks in an address, as ?ranks=0,3. Raises BadAddress."""
    parts = [part for part in request.query_params.get("ranks", "").split(",") if part.strip()]
    if not 0 < len(parts) <= MOST_RANKS:
        raise BadAddress(f"ranks: name 1 to {MOST_RANKS} of them, as ranks=0,3")
    return [number_of("rank", part) for part in parts]


def trace(database: Database, job: str, run: str, steps: tuple[int, int], ranks: Sequence[int]) -> Download:
    """Return the file of steps, first and last. It blocks. Raises BadAddress, FileRejected, NoSuchRun, and errors
    of queries.
    """
    from drumline.views.timeline.job_trace import timeline
    from drumline.views.timeline.rank_tracks import TooMuch

    first, last = steps
    if last - first >= MOST_STEPS:
        raise BadAddress(
            f"last: a file has {MOST_STEPS} steps; in a terminal: {timeline_command(job, run, first, last)}"
        )
    name = f"step {first}" if first == last else f"steps {first} to {last}"

    def content() -> bytes:
        try:
            return timeline(database.query, job, run, first, last, ranks, MOST_ROWS).trace
        except TooMuch:
            command = timeline_command(job, run, first, last)
            raise FileRejected(
                f"{name}: more than {MOST_ROWS:,} rows on these ranks; in a terminal: {command}"
            ) from None

    return _file(database, content, f"{name.replace(' ', '-')}.pftrace")


def request_trace(database: Database, job: str, run: str, request: str) -> Download:
    """Return the file of a request. It blocks. Raises FileRejected, NoSuchRun, and errors of queries."""
    from drumline.views.timeline.rank_tracks import TooMuch
    from drumline.views.timeline.request_trace import request_timeline

    def content() -> bytes:
        try:
            return request_timeline(database.query, job, run, request, most_rows=MOST_ROWS).trace
        except TooMuch:
            command = f"drumline timeline --job {shlex.quote(job)} --request {shlex.quote(request)}"
            raise FileRejected(
                f"more than {MOST_ROWS:,} rows were recorded while it ran; in a terminal: {command}"
            ) from None

    return _file(database, content, "request.pftrace")


def _file(database: Database, content: Callable[[], bytes], name: str) -> Download:
    def exclusive() -> bytes:
        with _writing:
            return content()

    return Download(database.kept(exclusive), name, "application/octet-stream")
