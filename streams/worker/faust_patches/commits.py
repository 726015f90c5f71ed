"""Let a worker commit only while it is a member of its group.

aiokafka forgets generation and member id when the broker does not know the member any more, and sends the next commit
without them. Kafka accepts that from any client while the group has no members: a halted broker, which expires all
of them, leaves it so until the first joins again. A worker that was halted beyond its session, whose last changes then
reached the changelog behind its successor's marker, committed their records so: recovery ignored the changes, no worker
read the records again, and they were lost without a trace (a chaos run showed it).
"""

from __future__ import annotations

from typing import Any


def commit_as_member() -> None:
    """Change aiokafka in this process. Raises AttributeError with an aiokafka that commits in another way."""
    from aiokafka.consumer.group_coordinator import GroupCoordinator
    from aiokafka.errors import UnknownMemberIdError

    commit = GroupCoordinator._do_commit_offsets

    async def do_commit_offsets(self: Any, assignment: Any, offsets: Any) -> None:
        """Raises UnknownMemberIdError, as for a commit that Kafka rejects. No await between check and request."""
        if self.generation < 0:
            raise UnknownMemberIdError(self.group_id)
        await commit(self, assignment, offsets)

    GroupCoordinator._do_commit_offsets = do_commit_offsets
