"""Check that a fenced sink is still the only one of its name.

A client (librdkafka 2.16, its issue 3437) that had no contact with its group's coordinator for the session timeout
drops its member id. Until it has joined again, its heartbeats and commits name the instance and no member. The
coordinator still has the former member under that name and takes the client for a second one: FENCED_INSTANCE_ID, which
ends the client. A request to join that the client gave up waiting for, as its broker was halted, is answered as well:
the coordinator then has a member under that name whose id the client never learnt. It sends no heartbeats, and is
forgotten after a session.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

REQUEST_S = 5.0
TIMEOUT_S = 30.0
#: Time in which the coordinator forgets a member that sends no heartbeats: its session of 10 s, and a margin.
FORGOTTEN_S = 12.0
#: A member id is the instance name, "-" and a UUID.
UUID_CHARS = 36


def is_sole_member(admin: AdminClient, group: str, name: str, member: str) -> bool:
    """Return True if `group` lists `member` (a member id), or within FORGOTTEN_S no member of this instance name.

    Returns False also if no broker answers within TIMEOUT_S. A sink that takes over the name replaces the member that
    had it, so that member is no longer listed. Blocks.
    """
    until, has_answered = time.monotonic() + TIMEOUT_S, False
    while time.monotonic() < until:
        if (answer := listed_group(admin, group)) is not None:
            listed = {listed_member.id for listed_member in answer.members}
            if member in listed or all(listed_id[: -UUID_CHARS - 1] != name for listed_id in listed):
                return True
            until, has_answered = until if has_answered else time.monotonic() + FORGOTTEN_S, True
        time.sleep(0.2)
    return False


def listed_group(admin: AdminClient, group: str) -> Any:
    """Return what the group's coordinator lists of the group; None if it does not answer within REQUEST_S. Blocks."""
    try:
        with warnings.catch_warnings():  # the replacement of list_groups ends the process by an assertion when
            warnings.simplefilter("ignore", DeprecationWarning)  # the coordinator returns (2.16)
            groups = admin.list_groups(group, timeout=REQUEST_S)
    except KafkaException:
        return None
    return groups[0] if groups and groups[0].error is None else None
