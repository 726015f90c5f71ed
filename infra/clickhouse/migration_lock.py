"""Lock of a database's migrations. The lock is a table, so it needs no Keeper."""

from __future__ import annotations

import os
import socket
import time

from drumline.infra.clickhouse.client import ClickHouseFailed, Client, command, rows
from drumline.infra.clickhouse.error_codes import ErrorCode

LOCK_STALE_S = 600


class MigrationConflict(RuntimeError):
    """The applied migrations differ from the files, or another process migrates. The message has a remedy."""


class MigrationLock:
    """Context manager that holds the migration lock; waits for up to `wait_s`.

    CREATE TABLE without IF NOT EXISTS succeeds for one of two processes. There is no lease: a lock that is older than
    LOCK_STALE_S, or of an exited process of this host, is taken over. Raises MigrationConflict after the wait.
    """

    def __init__(self, client: Client, database: str, wait_s: float = 60.0) -> None:
        self._client, self._database, self._wait_s = client, database, wait_s
        self._name = f"{database}.schema_migrations_lock"
        self._me = f"{socket.gethostname()}:{os.getpid()}"

    def __enter__(self) -> None:
        until = time.monotonic() + self._wait_s
        while not self._create(self._name):
            other, age, uuid = self._holder()
            if time.monotonic() > until:
                raise MigrationConflict(f"{other} migrates for {age:.0f} s; if it has exited: DROP TABLE {self._name}")
            if other and (age > LOCK_STALE_S or _has_exited(other)):
                self._take_over(uuid)
            else:
                time.sleep(0.2)

    def __exit__(self, *_: object) -> None:
        command(self._client, f"DROP TABLE IF EXISTS {self._name} SYNC")

    def _create(self, name: str) -> bool:
        try:
            command(self._client, f"CREATE TABLE {name} (x UInt8) ENGINE = Memory COMMENT '{self._me}'")
        except ClickHouseFailed as error:
            if error.code == ErrorCode.TABLE_ALREADY_EXISTS:
                return False
            raise
        return True

    def _take_over(self, uuid: str) -> None:
        """Drop the stale lock with this uuid and no other.

        Of several processes that find it, one creates its marker, and checks again before it drops the lock.
        """
        marker = f"{self._name}_stale_{uuid.replace('-', '')}"
        if not self._create(marker):
            time.sleep(0.2)
            return
        if self._holder()[2] == uuid:
            command(self._client, f"DROP TABLE IF EXISTS {self._name} SYNC")
        command(self._client, f"DROP TABLE IF EXISTS {marker} SYNC")

    def _holder(self) -> tuple[str, float, str]:
        """Return (host:pid, age in s, uuid) of the lock; empty without one."""
        locks = rows(
            self._client,
            "SELECT comment, dateDiff('second', metadata_modification_time, now()) AS age, toString(uuid) AS uuid "
            "FROM system.tables WHERE database = {d:String} AND name = 'schema_migrations_lock'",
            {"d": self._database},
        )
        return (str(locks[0]["comment"]), float(locks[0]["age"]), str(locks[0]["uuid"])) if locks else ("", 0.0, "")


def _has_exited(holder: str) -> bool:
    host, _, pid = holder.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
