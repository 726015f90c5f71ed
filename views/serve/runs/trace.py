"""File of a step for Perfetto: `drumline timeline` behind an address, of few ranks and rows."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from starlette.requests import Request

from drumline.views.report.text import timeline_command
from drumline.views.serve.addresses import BadAddress, number_of
from drumline.views.serve.database import Database, FileRejected
from drumline.views.serve.download import Download
from drumline.views.serve.timeline import LATE_RANKS, PEERS

#: Rows and ranks of a file: some 20 MB, in 9 queries a rank. `drumline timeline` has all ranks.
MOST_ROWS, MOST_RANKS = 200_000, LATE_RANKS + PEERS
#: A trace is made in memory: one at a time.
_writing = threading.Lock()


def ranks_of(request: Request) -> list[int]:
    """Return the ranks in an address, as ?ranks=0,3. Raises BadAddress."""
    parts = [part for part in request.query_params.get("ranks", "").split(",") if part.strip()]
    if not 0 < len(parts) <= MOST_RANKS:
        raise BadAddress(f"ranks: name 1 to {MOST_RANKS} of them, as ranks=0,3")
    return [number_of("rank", part) for part in parts]


def trace(database: Database, job: str, run: str, step: int, ranks: Sequence[int]) -> Download:
    """Return the file of a step. It blocks. Raises FileRejected, NoSuchRun, and errors of queries."""
    from drumline.views.timeline.job_trace import TooMuch, timeline

    def content() -> bytes:
        with _writing:
            try:
                return timeline(database.query, job, run, step, step, ranks, MOST_ROWS).trace
            except TooMuch:
                command = timeline_command(job, run, step, step)
                raise FileRejected(
                    f"step {step} has more than {MOST_ROWS:,} rows on these ranks; in a terminal: {command}"
                ) from None

    return Download(database.kept(content), f"step-{step}.pftrace", "application/octet-stream")
