"""Whether a named sink that Kafka has fenced is still the only one of its name.

A client (librdkafka 2.16, its issue 3437) that has not heard from its group's coordinator for the session timeout
throws its member id away. What it sends before it has joined again, a heartbeat or a commit, names the instance and no
member. The coordinator, back and knowing well who has this name, takes it for a second one: FENCED_INSTANCE_ID, the
client's end.
"""

from __future__ import annotations

import time
import warnings

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

REQUEST_S = 5.0
PATIENCE_S = 30.0


def unchallenged(admin: AdminClient, group: str, member: str) -> bool:
    """Whether `group` lists `member` (a member id) as it did before, or nobody at all; False also if no broker says so
    within PATIENCE_S. Who takes a name over replaces the member that had it, so that one is not listed any more."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            with warnings.catch_warnings():  # what should replace list_groups ends the process by an assertion when
                warnings.simplefilter("ignore", DeprecationWarning)  # the coordinator comes back (2.16)
                found = admin.list_groups(group, timeout=REQUEST_S)
            if found and found[0].error is None:
                listed = {one.id for one in found[0].members}
                return member in listed or not listed
        except KafkaException:  # away again
            pass
        time.sleep(0.2)
    return False
