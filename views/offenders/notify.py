"""One pass: store the notices that are due, then send those that no receiver has taken.

A notice is stored before it is sent, and again once it is taken. So a kill between the two sends it again, with the
same id and body, by which the receiver recognises it; nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from drumline.infra.clickhouse.client import Client
from drumline.views.offenders.notice_store import new_notices, unsent, write
from drumline.views.offenders.notices import DueLimits, Notice
from drumline.views.offenders.webhook import WebhookFailed

#: Id and body -> the receiver has taken them. Raises WebhookFailed.
Send = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Pass:
    """Result of a pass: notices that were taken, and (notice, reason) of the others."""

    taken: list[Notice]
    left: list[tuple[Notice, str]]


def notify(client: Client, limits: DueLimits, send: Send, now_s: float) -> Pass:
    """Make one pass. A receiver that does not answer ends it: the rest is sent by the next one.

    Raises TransientError or PermanentError of ClickHouse.
    """
    for notice in new_notices(client, limits, now_s):
        write(client, notice, sent=False)
    result = Pass([], [])
    waiting = unsent(client)
    for place, notice in enumerate(waiting):
        try:
            send(notice.id, notice.body.encode())
        except WebhookFailed as error:
            if not error.answered:
                result.left.extend((later, str(error)) for later in waiting[place:])
                break
            result.left.append((notice, str(error)))
            continue
        write(client, notice, sent=True)
        result.taken.append(notice)
    return result
