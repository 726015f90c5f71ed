"""Addresses of the pages, and what they may hold."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from starlette.requests import Request

from drumline.infra.runtime.times import BadTime, clickhouse_time, parse_time


class BadAddress(ValueError):
    """A part of the address is not what the page takes; the message names it."""


def job_url(job: str, run: str = "", rank: int | None = None, step: int | None = None, **more: Any) -> str:
    """Return the address of a job, or of a rank or step of it; these addresses are stable."""
    path = f"/job/{quote(job, safe='')}" + (f"/rank/{rank}" if rank is not None and step is None else "")
    if step is not None:
        path += f"/step/{step}"
        more["rank"] = rank
    query = urlencode({name: value for name, value in {"run": run, **more}.items() if value not in ("", None)})
    return path + (f"?{query}" if query else "")


def compare_url(job: str, run: str, other_run: str) -> str:
    """Return the address of two runs of a job side by side."""
    return f"{job_url(job)}/compare?{urlencode({'run': run, 'other_run': other_run})}"


def serving_url(job: str, run: str = "") -> str:
    """Return the address of a job's inference engines."""
    return f"{job_url(job)}/serving" + (f"?{urlencode({'run': run})}" if run else "")


def request_url(job: str, run: str, request: str) -> str:
    """Return the address of the file of a request for Perfetto."""
    return f"{job_url(job)}/request/{quote(request, safe='')}/{TRACE}?{urlencode({'run': run})}"


#: Name of the file of a step, or of a request, below its address.
TRACE = "timeline.pftrace"


def trace_url(job: str, run: str, step: int, ranks: Iterable[int], last: int | None = None) -> str:
    """Return the address of the file of a step, or of those up to `last`, for Perfetto."""
    upto = {} if last in (None, step) else {"last": last}
    query = urlencode({"run": run, "ranks": ",".join(map(str, ranks)), **upto}, safe=",")
    return f"{job_url(job, step=step)}/{TRACE}?{query}"


def number_of(name: str, value: str) -> int:
    """Return a rank or a step, within what ClickHouse's columns hold. Raises BadAddress."""
    try:
        return max(-1, min(int(value), (1 << 31) - 1 if "rank" in name else (1 << 63) - 1))
    except ValueError:
        raise BadAddress(f"{name} {value!r} is no number") from None


def times_of(request: Request) -> tuple[str, str]:
    """Return `from` and `to` as ClickHouse reads them: forms of parse_time, or ms since the epoch as in Grafana."""
    return _time("from", request), _time("to", request)


def _time(name: str, request: Request) -> str:
    text_of_time = request.query_params.get(name, "").strip()
    if not text_of_time:
        return ""
    try:
        if text_of_time.isdigit():
            return clickhouse_time(datetime.fromtimestamp(int(text_of_time) / 1e3, UTC))
        return clickhouse_time(parse_time(text_of_time, datetime.now(UTC)))
    except (BadTime, ValueError, OverflowError, OSError) as error:
        raise BadAddress(f"{name}: {error}") from None
