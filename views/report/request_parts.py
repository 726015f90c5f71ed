"""Parts of a request of an inference engine: queue, prefill, decode.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator


def request_parts(begin: int, end: int, queue_ns: int, first_ns: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, begin and end of queue, prefill and decode; those that took no time are left out.

    begin, end: of the request, ns since the epoch. queue_ns, first_ns: from its begin to its first iteration and its
    first token; -1 = it had none.
    """
    computes = end if queue_ns < 0 else begin + queue_ns
    decodes = end if first_ns < 0 else begin + first_ns
    for name, since, until in (("queue", begin, computes), ("prefill", computes, decodes), ("decode", decodes, end)):
        if until > since:
            yield name, since, until
